// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/operations.h"

namespace driftless::reference {
namespace {

// What one byte of the tensor contributes: its share of the word that it lies in.
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

}  // namespace driftless::reference
