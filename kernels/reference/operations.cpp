// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/operations.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace driftless::reference {
namespace {

// The contribution of one byte of the tensor, as part of its word.
Digest byte_digest(const DigestTensorKey& tensor, std::uint64_t position, std::byte byte) {
  const std::uint64_t word = position / kDigestWordBytes;
  const std::uint64_t share = std::to_integer<std::uint64_t>(byte)
                              << (8 * (position % kDigestWordBytes));
  Digest digest;
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t block_key = digest_block_key(tensor, word / kDigestBlockWords, lane);
    const std::uint64_t place_key = digest_place_keys().at(lane, word % kDigestBlockWords);
    digest.lanes[lane] = digest_multiply(digest_multiply(block_key, place_key), share);
  }
  return digest;
}

}  // namespace

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values) {
  const auto* before = static_cast<const std::byte*>(old_units);
  const auto* after = static_cast<const std::byte*>(new_units);
  auto* out = static_cast<std::byte*>(values);
  auto* old_out = static_cast<std::byte*>(old_values);
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = std::size_t{i} * unit_bytes;
    if (std::memcmp(before + at, after + at, unit_bytes) == 0) continue;
    offsets[found] = i;
    const std::size_t to = std::size_t{found} * unit_bytes;
    std::memcpy(out + to, after + at, unit_bytes);
    if (old_out != nullptr) std::memcpy(old_out + to, before + at, unit_bytes);
    ++found;
  }
  return found;
}

std::uint32_t diff_cast(const void* old_units, const void* new_values, std::uint32_t count,
                        ValueCast cast, std::uint32_t* offsets, void* values, void* old_values) {
  const auto* before = static_cast<const std::byte*>(old_units);
  const auto* after = static_cast<const std::byte*>(new_values);
  auto* out = static_cast<std::byte*>(values);
  auto* old_out = static_cast<std::byte*>(old_values);
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t value = 0;
    std::memcpy(&value, after + std::size_t{i} * sizeof(value), sizeof(value));
    const std::uint16_t bits =
        cast == ValueCast::kF32ToBF16 ? bf16_of_f32(value) : f16_of_f32(value);
    const std::size_t at = std::size_t{i} * sizeof(bits), to = std::size_t{found} * sizeof(bits);
    if (!is_nan_f32(value) && std::memcmp(before + at, &bits, sizeof(bits)) == 0) continue;
    offsets[found] = i;
    std::memcpy(out + to, &bits, sizeof(bits));
    if (old_out != nullptr) std::memcpy(old_out + to, before + at, sizeof(bits));
    ++found;
  }
  return found;
}

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values) {
  const auto* from = static_cast<const std::byte*>(units);
  auto* to = static_cast<std::byte*>(values);
  for (std::uint64_t k = 0; k < count; ++k) {
    std::memcpy(to + k * unit_bytes, from + std::size_t{offsets[k]} * unit_bytes, unit_bytes);
  }
}

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  const auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(units);
  for (std::uint64_t k = 0; k < count; ++k) {
    std::memcpy(to + std::size_t{offsets[k]} * unit_bytes, from + k * unit_bytes, unit_bytes);
  }
}

std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values) {
  const auto* from = static_cast<const std::byte*>(target);
  auto* to = static_cast<std::byte*>(values);
  std::uint64_t read = 0;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = map.target_of(origin + offsets[k]);
    if (at == StridedMap::kOutside) continue;
    std::memcpy(to + k * unit_bytes, from + at * unit_bytes, unit_bytes);
    ++read;
  }
  return read;
}

std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast) {
  const auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(target);
  std::uint64_t written = 0;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = map.target_of(origin + offsets[k]);
    if (at == StridedMap::kOutside) continue;
    with_cast(cast, unit_bytes, [&](auto conversion) {
      typename decltype(conversion)::From value;
      std::memcpy(&value, from + k * sizeof(value), sizeof(value));
      const typename decltype(conversion)::To converted = conversion.apply(value);
      std::memcpy(to + at * sizeof(converted), &converted, sizeof(converted));
    });
    ++written;
  }
  return written;
}

std::uint64_t masked_overwrite(void* target, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  std::uint64_t written = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    // Little-endian, so the sentinel's low bytes come first in memory.
    if (std::memcmp(from + i * unit_bytes, &sentinel, unit_bytes) == 0) continue;
    std::memcpy(to + i * unit_bytes, from + i * unit_bytes, unit_bytes);
    ++written;
  }
  return written;
}

Digest digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes) {
  Digest sum;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += byte_digest(tensor, byte_offset + i, bytes[i]);
  }
  return sum;
}

Digest scatter_digested(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                        const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                        const void* new_values, void* units) {
  const auto* before = static_cast<const std::byte*>(old_values);
  const auto* after = static_cast<const std::byte*>(new_values);
  Digest change;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = (origin + offsets[k]) * unit_bytes;
    change += digest(tensor, at, {after + k * unit_bytes, unit_bytes});
    change -= digest(tensor, at, {before + k * unit_bytes, unit_bytes});
  }
  if (units != nullptr) scatter(units, unit_bytes, offsets, count, new_values);
  return change;
}

StridedSum digest_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                          ValueCast cast, const DigestTensorKey& tensor, std::uint64_t begin,
                          std::uint64_t end) {
  const auto* units = static_cast<const std::byte*>(target);
  StridedSum sum;
  end = std::min(end, map.source_end);
  for (std::uint64_t at = std::max(begin, map.source_offset); at < end; ++at) {
    const std::uint64_t there = map.target_of(at);
    if (there == StridedMap::kOutside) continue;
    with_cast(cast, unit_bytes, [&](auto conversion) {
      using Cast = decltype(conversion);
      typename Cast::To bits;
      std::memcpy(&bits, units + there * sizeof(bits), sizeof(bits));
      typename Cast::From value;
      if (!undo_cast<Cast>(bits, value)) {
        ++sum.foreign;
        return;
      }
      sum.digest += digest(tensor, at * sizeof(value), std::as_bytes(std::span(&value, 1)));
    });
  }
  return sum;
}

}  // namespace driftless::reference
