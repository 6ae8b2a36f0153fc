// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/baseline.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

// A run this long is summed where it lies; of shorter ones, of those that step and of those that
// convert, what falls into one block of the digest is put together first.
constexpr std::uint64_t kDirectBytes = 128;

// The part of one block of the digest that is held, with zeros, which count nothing, between.
class BlockWindow {
 public:
  BlockWindow(DigestSums digest_sums, const DigestTensorKey& tensor)
      : digest_sums_(digest_sums), tensor_(tensor) {}

  // Where byte `at` of the tensor goes, and `bytes` more, of the same block; bytes ascend.
  std::byte* room(std::uint64_t at, std::uint64_t bytes) {
    if (at / kDigestBlockBytes != block_) flush(at / kDigestBlockBytes);
    const auto from = static_cast<std::uint32_t>(at % kDigestBlockBytes);
    if (begin_ == end_) begin_ = from;
    end_ = from + static_cast<std::uint32_t>(bytes);
    return bytes_ + from;
  }
  void flush(std::uint64_t next_block) {
    if (begin_ != end_) {
      sum_ += digest(digest_sums_, tensor_, block_ * kDigestBlockBytes + begin_,
                     {bytes_ + begin_, end_ - begin_});
      std::memset(bytes_ + begin_, 0, end_ - begin_);
      begin_ = end_ = 0;
    }
    block_ = next_block;
  }
  [[nodiscard]] const Digest& sum() const { return sum_; }

 private:
  DigestSums digest_sums_;
  const DigestTensorKey& tensor_;
  std::uint64_t block_ = 0;
  std::uint32_t begin_ = 0, end_ = 0;  // what is filled
  alignas(64) std::byte bytes_[kDigestBlockBytes] = {};
  Digest sum_;
};

// `count` units from `from` on, every step-th, to `to`; returns how many are foreign, and left out.
template <typename Cast>
std::uint64_t collect(const std::byte* from, std::uint64_t step, std::uint64_t count,
                      std::byte* to) {
  using To = typename Cast::To;
  using From = typename Cast::From;
  std::uint64_t foreign = 0;
  for (std::uint64_t k = 0; k < count; ++k) {
    To bits;
    std::memcpy(&bits, from + k * step * sizeof(To), sizeof(To));
    From value;
    if (!undo_cast<Cast>(bits, value)) {
      ++foreign;
      continue;
    }
    std::memcpy(to + k * sizeof(From), &value, sizeof(From));
  }
  return foreign;
}

template <typename Cast>
StridedSum sum_runs(DigestSums digest_sums, const StridedMap& map, const std::byte* target,
                    const DigestTensorKey& tensor, std::uint64_t begin, std::uint64_t end) {
  using To = typename Cast::To;
  using From = typename Cast::From;
  constexpr bool kSame = std::is_same_v<Cast, SameBits<To>>;
  constexpr std::uint64_t kBlockUnits = kDigestBlockBytes / sizeof(From);
  BlockWindow window(digest_sums, tensor);
  StridedSum sum;
  for (std::uint64_t at = begin; at < end;) {
    const StridedMap::Run run = map.run_at(at);
    const std::uint64_t last = std::min(run.end, end);
    if (run.target == StridedMap::kOutside) {
      at = last;
      continue;
    }
    const std::byte* const from = target + (run.target + (at - run.begin) * run.step) * sizeof(To);
    if (kSame && run.step == 1 && (last - at) * sizeof(To) >= kDirectBytes) {
      sum.digest += digest(digest_sums, tensor, at * sizeof(To), {from, (last - at) * sizeof(To)});
      at = last;
      continue;
    }
    const std::uint64_t count = std::min(last, (at / kBlockUnits + 1) * kBlockUnits) - at;
    sum.foreign +=
        collect<Cast>(from, run.step, count, window.room(at * sizeof(From), count * sizeof(From)));
    at += count;
  }
  window.flush(0);
  sum.digest += window.sum();
  return sum;
}

}  // namespace

StridedSum digest_strided(DigestSums digest_sums, const StridedMap& map, const void* target,
                          unsigned unit_bytes, ValueCast cast, const DigestTensorKey& tensor,
                          std::uint64_t begin, std::uint64_t end) {
  begin = std::max(begin, map.source_offset);
  end = std::min(end, map.source_end);
  return with_cast(cast, unit_bytes, [&](auto each) {
    return sum_runs<decltype(each)>(digest_sums, map, static_cast<const std::byte*>(target), tensor,
                                    begin, end);
  });
}

}  // namespace driftless::cpu
