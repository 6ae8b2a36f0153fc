// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu/baseline.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless::cpu {
namespace {

// A run of this length is summed in place. Shorter runs, runs with a step and converted runs are
// first gathered into blocks of the digest.
constexpr std::uint64_t kDirectBytes = 128;

// A window of one block of the digest, filled with zeros between its parts; zeros add nothing.
class BlockWindow {
 public:
  BlockWindow(DigestSums digest_sums, const DigestTensorKey& tensor)
      : digest_sums_(digest_sums), tensor_(tensor) {}

  // The place for `bytes` bytes from byte `at` of the tensor on, all in one block; `at` ascends.
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
  alignas(64) std::byte bytes_[kDigestBlockBytes] = {};
  DigestSums digest_sums_;
  const DigestTensorKey& tensor_;
  std::uint64_t block_ = 0;
  std::uint32_t begin_ = 0, end_ = 0;  // the filled range
  Digest sum_;
};

// Converts `count` units, every step-th from `from` on, to `to`. Returns the number of foreign
// ones, which become zeros. Without branches, so that adjoining units can use SIMD.
template <typename Cast>
std::uint64_t collect(const std::byte* from, std::uint64_t step, std::uint64_t count,
                      std::byte* to) {
  using To = typename Cast::To;
  using From = typename Cast::From;
  const auto convert = [&](std::uint64_t at, std::uint64_t k) -> std::uint32_t {
    To bits;
    std::memcpy(&bits, from + at * sizeof(To), sizeof(To));
    From value = 0;
    const bool known = undo_cast<Cast>(bits, value);
    value = static_cast<From>(known ? value : 0);
    std::memcpy(to + k * sizeof(From), &value, sizeof(From));
    return known ? 0 : 1;
  };
  std::uint32_t foreign = 0;  // 32 bits suffice: a block has fewer units
  if (step == 1) {
    for (std::uint64_t k = 0; k < count; ++k) foreign += convert(k, k);
  } else {
    for (std::uint64_t k = 0; k < count; ++k) foreign += convert(k * step, k);
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

// A transpose is processed in tiles. A tile has kTileRows units that adjoin in the target, each in
// another row of the tensor; and of each row it has a block of the digest. Each row is summed
// separately.
constexpr std::uint64_t kTileRows = 32;
constexpr std::uint64_t kTilePitch = kDigestBlockBytes + 64;  // avoids cache conflicts between rows

template <typename Cast>
StridedSum sum_tile(DigestSums digest_sums, const StridedMap& map, const std::byte* target,
                    const DigestTensorKey& tensor, std::uint64_t first, std::uint64_t rows,
                    std::uint64_t count, std::uint64_t row_stride, std::byte* tile) {
  using To = typename Cast::To;
  using From = typename Cast::From;
  const std::uint64_t step = map.dim[map.dims - 1].target_stride;
  StridedSum sum;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::byte* const line = target + k * step * sizeof(To);
    for (std::uint64_t row = 0; row < rows; ++row) {
      To bits;
      std::memcpy(&bits, line + row * sizeof(To), sizeof(To));
      From value = 0;
      if (!undo_cast<Cast>(bits, value)) {
        value = 0;
        ++sum.foreign;
      }
      std::memcpy(tile + row * kTilePitch + k * sizeof(From), &value, sizeof(From));
    }
  }
  for (std::uint64_t row = 0; row < rows; ++row) {
    sum.digest += digest(digest_sums, tensor, (first + row * row_stride) * sizeof(From),
                         {tile + row * kTilePitch, count * sizeof(From)});
  }
  return sum;
}

// Sums a whole map that transposes.
template <typename Cast>
StridedSum sum_transposed(DigestSums digest_sums, const StridedMap& map, const std::byte* target,
                          const DigestTensorKey& tensor) {
  constexpr std::uint64_t kTileUnits = kDigestBlockBytes / sizeof(typename Cast::From);
  const std::uint32_t across = map.crossing(), inner = map.dims - 1;
  const StridedMap::Dim &rows = map.dim[across], &columns = map.dim[inner];
  std::vector<std::byte> tile(kTileRows * kTilePitch);
  StridedSum sum;
  const std::uint64_t planes = map.units() / rows.size / columns.size;
  for (std::uint64_t plane = 0; plane < planes; ++plane) {
    std::uint64_t source = map.source_offset, there = map.target_offset, rest = plane;
    for (std::uint32_t d = inner; d-- > 0;) {
      if (d == across) continue;
      source += rest % map.dim[d].size * map.dim[d].source_stride;
      there += rest % map.dim[d].size * map.dim[d].target_stride;
      rest /= map.dim[d].size;
    }
    for (std::uint64_t row = 0; row < rows.size; row += kTileRows) {
      for (std::uint64_t column = 0; column < columns.size; column += kTileUnits) {
        const StridedSum found = sum_tile<Cast>(
            digest_sums, map,
            target + (there + row + column * columns.target_stride) * sizeof(typename Cast::To),
            tensor, source + row * rows.source_stride + column,
            std::min(kTileRows, rows.size - row), std::min(kTileUnits, columns.size - column),
            rows.source_stride, tile.data());
        sum.digest += found.digest;
        sum.foreign += found.foreign;
      }
    }
  }
  return sum;
}

}  // namespace

StridedSum digest_strided(DigestSums digest_sums, const StridedMap& map, const void* target,
                          unsigned unit_bytes, ValueCast cast, const DigestTensorKey& tensor,
                          std::uint64_t begin, std::uint64_t end) {
  begin = std::max(begin, map.source_offset);
  end = std::min(end, map.source_end);
  const auto* const bytes = static_cast<const std::byte*>(target);
  const bool all = begin == map.source_offset && end == map.source_end;
  return with_cast(cast, unit_bytes, [&](auto each) {
    using Cast = decltype(each);
    if (all && map.crossing() < map.dims) {
      return sum_transposed<Cast>(digest_sums, map, bytes, tensor);
    }
    return sum_runs<Cast>(digest_sums, map, bytes, tensor, begin, end);
  });
}

}  // namespace driftless::cpu
