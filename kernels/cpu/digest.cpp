#include "kernels/cpu/digest.h"

#include <algorithm>
#include <cstring>

namespace driftless::cpu {
namespace {

using Wide = unsigned __int128;

std::uint64_t reduce(Wide x) {  // any x below 2^122
  return digest_add(digest_fold(static_cast<std::uint64_t>(x) & kDigestPrime),
                    digest_fold(static_cast<std::uint64_t>(x >> 61)));
}

std::uint64_t reduce_signed(__int128 x) {  // any |x| below 2^122
  return x >= 0 ? reduce(static_cast<Wide>(x)) : digest_subtract(0, reduce(static_cast<Wide>(-x)));
}

// Adds a block's sums, taken without the block's key.
void add_block(const DigestTensorKey& tensor, std::uint64_t block,
               const std::uint64_t (&sums)[kDigestLanes], Digest& digest) {
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t term = digest_multiply(digest_block_key(tensor, block, lane), sums[lane]);
    digest.lanes[lane] = digest_add(digest.lanes[lane], term);
  }
}

// `count` whole words of one block, the first of them at `place`.
void add_words(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t block,
               std::size_t place, const std::byte* words, std::size_t count, Digest& digest) {
  static_assert(kDigestLanes * 2 == kDigestKeyStreams);
  const DigestPlaceKeys& keys = digest_place_keys();
  const std::uint32_t* const streams[kDigestKeyStreams] = {
      keys.low[0].data() + place, keys.high[0].data() + place, keys.low[1].data() + place,
      keys.high[1].data() + place};
  WideSum wide[kDigestKeyStreams];
  digest_sums(words, static_cast<std::uint32_t>(count), streams, wide);
  std::uint64_t sums[kDigestLanes];
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    const auto exact = [](const WideSum& sum) { return sum.low + (Wide{sum.high} << 32); };
    sums[lane] = reduce(exact(wide[2 * lane]) + (exact(wide[2 * lane + 1]) << 28));
  }
  add_block(tensor, block, sums, digest);
}

// Bytes that do not fill their word, which starts at tensor byte `word * 4`.
void add_partial_word(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t word,
                      std::size_t skip, std::span<const std::byte> bytes, Digest& digest) {
  std::byte filled[kDigestWordBytes] = {};
  std::memcpy(filled + skip, bytes.data(), bytes.size());
  add_words(digest_sums, tensor, word / kDigestBlockWords, word % kDigestBlockWords, filled, 1,
            digest);
}

template <typename Unit>
Unit load(const void* values, std::uint64_t k) {
  Unit unit;
  std::memcpy(&unit, static_cast<const std::byte*>(values) + k * sizeof(Unit), sizeof(Unit));
  return unit;
}

// Collects the terms of one block while offsets stay in it.
class ChangeSum {
 public:
  ChangeSum(const DigestTensorKey& tensor, std::uint64_t block) : tensor_(tensor), block_(block) {}

  void add(std::uint64_t word, std::int64_t step) {  // |step| < 2^32
    if (const std::uint64_t block = word / kDigestBlockWords; block != block_) {
      flush();
      block_ = block;
    }
    const std::size_t place = word % kDigestBlockWords;
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      sums_[lane] += static_cast<__int128>(keys_.at(lane, place)) * step;
    }
  }
  [[nodiscard]] Digest finish() {
    flush();
    return digest_;
  }

 private:
  void flush() {
    const std::uint64_t sums[kDigestLanes] = {reduce_signed(sums_[0]), reduce_signed(sums_[1])};
    add_block(tensor_, block_, sums, digest_);
    sums_[0] = sums_[1] = 0;
  }

  const DigestPlaceKeys& keys_ = digest_place_keys();
  const DigestTensorKey tensor_;
  std::uint64_t block_;
  __int128 sums_[kDigestLanes] = {};
  Digest digest_;
};

template <typename Unit>
Digest change_of_units(const DigestTensorKey& tensor, std::uint64_t origin,
                       const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                       const void* new_values) {
  if (count == 0) return {};
  const auto low = [](auto unit) { return static_cast<std::int64_t>(unit & 0xffffffffU); };
  ChangeSum sum(tensor, (origin + offsets[0]) * sizeof(Unit) / kDigestBlockBytes);
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t byte = (origin + offsets[k]) * sizeof(Unit);
    const std::uint64_t word = byte / kDigestWordBytes;
    const std::uint64_t before = load<Unit>(old_values, k), after = load<Unit>(new_values, k);
    const auto shift = 8 * (byte % kDigestWordBytes);
    sum.add(word, low(after << shift) - low(before << shift));
    if constexpr (sizeof(Unit) == 8) sum.add(word + 1, low(after >> 32) - low(before >> 32));
  }
  return sum.finish();
}

}  // namespace

Digest digest(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes) {
  Digest digest;
  if (bytes.empty()) return digest;  // whose data() may be null
  std::uint64_t word = byte_offset / kDigestWordBytes;
  if (const std::size_t skip = byte_offset % kDigestWordBytes; skip != 0) {
    const std::size_t head = std::min(kDigestWordBytes - skip, bytes.size());
    add_partial_word(digest_sums, tensor, word, skip, bytes.first(head), digest);
    bytes = bytes.subspan(head);
    ++word;
  }
  while (bytes.size() >= kDigestWordBytes) {
    const std::size_t place = word % kDigestBlockWords;
    const std::size_t count = std::min(kDigestBlockWords - place, bytes.size() / kDigestWordBytes);
    add_words(digest_sums, tensor, word / kDigestBlockWords, place, bytes.data(), count, digest);
    bytes = bytes.subspan(count * kDigestWordBytes);
    word += count;
  }
  if (!bytes.empty()) add_partial_word(digest_sums, tensor, word, 0, bytes, digest);
  return digest;
}

Digest digest_change(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                     const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                     const void* new_values) {
  switch (unit_bytes) {
    case 1:
      return change_of_units<std::uint8_t>(tensor, origin, offsets, count, old_values, new_values);
    case 2:
      return change_of_units<std::uint16_t>(tensor, origin, offsets, count, old_values, new_values);
    case 4:
      return change_of_units<std::uint32_t>(tensor, origin, offsets, count, old_values, new_values);
    default:
      return change_of_units<std::uint64_t>(tensor, origin, offsets, count, old_values, new_values);
  }
}

}  // namespace driftless::cpu
