// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/baseline.h"

namespace driftless::cpu {
namespace {

using Wide = unsigned __int128;

std::uint64_t reduce(Wide x) {  // any x below 2^122
  return digest_add(digest_fold(static_cast<std::uint64_t>(x) & kDigestPrime),
                    digest_fold(static_cast<std::uint64_t>(x >> 61)));
}

// For any |x| below 2^121. Adds a multiple of p that makes it positive: the sign is random, so a
// branch would be mispredicted half of the time.
std::uint64_t reduce_signed(__int128 x) {
  return reduce(static_cast<Wide>(x) + (Wide{kDigestPrime} << 60));
}

// Adds a block's sums, which do not include the block's key.
void add_block(const DigestTensorKey& tensor, std::uint64_t block,
               const std::uint64_t (&sums)[kDigestLanes], Digest& digest) {
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t term = digest_multiply(digest_block_key(tensor, block, lane), sums[lane]);
    digest.lanes[lane] = digest_add(digest.lanes[lane], term);
  }
}

// Adds `count` whole words of one block; the first one is at `place`.
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

// Adds bytes that do not fill their word, which starts at byte `word * 4` of the tensor.
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

// Units of up to 2 bytes have code of their own, because 64-bit products are slow on small cores:
// their changes are small enough for 32-bit factors and 64-bit sums.

constexpr std::uint64_t kLimbMask = (std::uint64_t{1} << 31) - 1;

using AllHalfKeys = std::array<HalfKeys, kDigestBlockHalves>;

AllHalfKeys make_half_keys() {
  static_assert(kDigestLanes == 2 && kDigestBlockHalves == 2 * kDigestBlockWords);
  AllHalfKeys keys{};
  for (std::size_t half = 0; half < keys.size(); ++half) {
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      const std::uint64_t key = digest_multiply(digest_place_keys().at(lane, half / 2),
                                                std::uint64_t{1} << (16 * (half % 2)));
      keys[half].limbs[2 * lane] = static_cast<std::int32_t>(key & kLimbMask);
      keys[half].limbs[2 * lane + 1] = static_cast<std::int32_t>(key >> 31);
    }
  }
  return keys;
}

const HalfKeys* half_keys() {
  static const AllHalfKeys keys = make_half_keys();
  return keys.data();
}

// For any x; the result is below 2^61 + 8; digest_fold() completes the reduction.
std::uint64_t fold_loosely(std::uint64_t x) { return (x & kDigestPrime) + (x >> 61); }

// low + high * 2^31 mod p, below 2^63; the absolute values of both are below 2^60. The upper bits
// of `high` count multiples of 2^61, which is 1 mod p.
std::uint64_t join_limbs(std::int64_t low, std::int64_t high) {
  const std::int64_t rest = high & ((std::int64_t{1} << 30) - 1);
  return static_cast<std::uint64_t>(low + (high >> 30)) + (static_cast<std::uint64_t>(rest) << 31) +
         kDigestPrime;
}

// Iterations of the loop depend on each other only through the last additions.
void add_steps(const DigestTensorKey& tensor, std::span<const BlockSteps> blocks, Digest& digest) {
  std::uint64_t total[kDigestLanes] = {};
  for (const BlockSteps& each : blocks) {
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      const std::uint64_t sum = join_limbs(each.sums[2 * lane], each.sums[2 * lane + 1]);
      const Wide product = Wide{digest_block_key(tensor, each.block, lane)} * sum;
      const std::uint64_t term = fold_loosely((static_cast<std::uint64_t>(product) & kDigestPrime) +
                                              static_cast<std::uint64_t>(product >> 61));
      total[lane] = fold_loosely(total[lane] + term);
    }
  }
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    digest.lanes[lane] = digest_add(digest.lanes[lane], digest_fold(total[lane]));
  }
}

Digest change_of_small_units(DigestSteps digest_steps, const DigestTensorKey& tensor,
                             UnitChanges changes) {
  std::array<BlockSteps, 64> blocks;  // only entries that are read are filled
  Digest digest;
  while (changes.done < changes.count) {
    const unsigned found = digest_steps(changes, half_keys(), blocks.data(), blocks.size());
    add_steps(tensor, std::span(blocks).first(found), digest);
  }
  return digest;
}

// The contribution of the changes within one block, without the block's key.
class LargeSteps {
 public:
  void add(std::size_t place, std::uint64_t before, std::uint64_t after) {
    add_word(place, before, after);
    if ((before | after) >> 32 != 0) add_word(place + 1, before >> 32, after >> 32);
  }
  void end_block(const DigestTensorKey& tensor, std::uint64_t block, Digest& digest) {
    std::uint64_t sums[kDigestLanes];
    for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
      sums[lane] = reduce_signed(sums_[lane]);
      sums_[lane] = 0;
    }
    add_block(tensor, block, sums, digest);
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

// A unit lies in one block, and units ascend: a block's terms are summed before its key is
// computed.
template <typename Unit>
Digest change_of_large_units(const DigestTensorKey& tensor, std::uint64_t origin,
                             const std::uint32_t* offsets, std::uint64_t count,
                             const void* old_values, const void* new_values) {
  LargeSteps steps;
  Digest digest;
  if (count == 0) return digest;
  std::uint64_t block = (origin + offsets[0]) * sizeof(Unit) / kDigestBlockBytes;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t at = (origin + offsets[k]) * sizeof(Unit);
    if (at / kDigestBlockBytes != block) {
      steps.end_block(tensor, block, digest);
      block = at / kDigestBlockBytes;
    }
    steps.add(at % kDigestBlockBytes / kDigestWordBytes, load<Unit>(old_values, k),
              load<Unit>(new_values, k));
  }
  steps.end_block(tensor, block, digest);
  return digest;
}

}  // namespace

Digest digest(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes) {
  Digest digest;
  if (bytes.empty()) return digest;  // data() may be null
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

Digest scatter_digested(DigestSteps digest_steps, const DigestTensorKey& tensor,
                        unsigned unit_bytes, std::uint64_t origin, const std::uint32_t* offsets,
                        std::uint64_t count, const void* old_values, const void* new_values,
                        void* units) {
  if (unit_bytes <= 2) {
    return change_of_small_units(
        digest_steps, tensor,
        {unit_bytes, origin, offsets, count, static_cast<const unsigned char*>(old_values),
         static_cast<const unsigned char*>(new_values), static_cast<unsigned char*>(units), 0});
  }
  if (units != nullptr) scatter(units, unit_bytes, offsets, count, new_values);
  return unit_bytes == 4 ? change_of_large_units<std::uint32_t>(tensor, origin, offsets, count,
                                                                old_values, new_values)
                         : change_of_large_units<std::uint64_t>(tensor, origin, offsets, count,
                                                                old_values, new_values);
}

}  // namespace driftless::cpu
