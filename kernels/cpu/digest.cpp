#include "kernels/cpu/digest.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace driftless::cpu {
namespace {

using Wide = unsigned __int128;

std::uint64_t reduce(Wide x) {  // any x below 2^122
  return digest_add(digest_fold(static_cast<std::uint64_t>(x) & kDigestPrime),
                    digest_fold(static_cast<std::uint64_t>(x >> 61)));
}

// Any |x| below 2^121. Adds a multiple of p that makes it positive: its sign is a coin toss, on
// which a branch would be wrong half of the time.
std::uint64_t reduce_signed(__int128 x) {
  return reduce(static_cast<Wide>(x) + (Wide{kDigestPrime} << 60));
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

using BlockSums = std::uint64_t[kDigestLanes];

// What changes within one block, without its key. Two kinds, because 64-bit products are slow on
// small cores: units of up to 2 bytes have steps so small that 32-bit factors and 64-bit sums do,
// if each place of a unit in its word has sums of its own.
class SmallSteps {
 public:
  void add(std::size_t place, std::size_t byte, std::uint64_t before, std::uint64_t after) {
    const auto step = static_cast<std::int32_t>(after) - static_cast<std::int32_t>(before);
    std::int64_t(&sums)[2 * kDigestLanes] = sums_[byte];
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      sums[2 * lane] += std::int64_t{step} * static_cast<std::int32_t>(keys_.low[lane][place]);
      sums[2 * lane + 1] += std::int64_t{step} * static_cast<std::int32_t>(keys_.high[lane][place]);
    }
  }
  void take(BlockSums& out) {
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      __int128 sum = 0;
      for (std::size_t byte = kDigestWordBytes; byte-- > 0;) {
        sum = sum * 256 + sums_[byte][2 * lane] +
              static_cast<__int128>(sums_[byte][2 * lane + 1]) * (1 << 28);
      }
      out[lane] = reduce_signed(sum);
    }
    std::memset(sums_, 0, sizeof(sums_));
  }

 private:
  const DigestPlaceKeys& keys_ = digest_place_keys();
  std::int64_t sums_[kDigestWordBytes][2 * kDigestLanes] = {};
};

class LargeSteps {
 public:
  void add(std::size_t place, std::size_t, std::uint64_t before, std::uint64_t after) {
    add_word(place, before, after);
    if ((before | after) >> 32 != 0) add_word(place + 1, before >> 32, after >> 32);
  }
  void take(BlockSums& out) {
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      out[lane] = reduce_signed(sums_[lane]);
      sums_[lane] = 0;
    }
  }

 private:
  void add_word(std::size_t place, std::uint64_t before, std::uint64_t after) {
    const auto step = static_cast<std::int64_t>(after & 0xffffffffU) -
                      static_cast<std::int64_t>(before & 0xffffffffU);
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      sums_[lane] += static_cast<__int128>(keys_.at(lane, place)) * step;
    }
  }

  const DigestPlaceKeys& keys_ = digest_place_keys();
  __int128 sums_[kDigestLanes] = {};
};

// Units lie whole in one block, and ascend: a block's terms are summed before its key is made.
template <typename Unit>
Digest change_of_units(const DigestTensorKey& tensor, std::uint64_t origin,
                       const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                       const void* new_values) {
  std::conditional_t<sizeof(Unit) <= 2, SmallSteps, LargeSteps> steps;
  BlockSums sums;
  Digest digest;
  if (count == 0) return digest;
  std::uint64_t block = (origin + offsets[0]) * sizeof(Unit) / kDigestBlockBytes;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = (origin + offsets[k]) * sizeof(Unit);
    if (at / kDigestBlockBytes != block) {
      steps.take(sums);
      add_block(tensor, block, sums, digest);
      block = at / kDigestBlockBytes;
    }
    steps.add(at % kDigestBlockBytes / kDigestWordBytes, at % kDigestWordBytes,
              load<Unit>(old_values, k), load<Unit>(new_values, k));
  }
  steps.take(sums);
  add_block(tensor, block, sums, digest);
  return digest;
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
