// SPDX-License-Identifier: Apache-2.0
// The fixed input behind the files in tests/golden and the seeds of the fuzz targets. Changing
// anything here changes them.
#pragma once

#include <vector>

#include "core/layout.h"
#include "formats/bucket.h"
#include "formats/frame.h"
#include "support/delta_model.h"

namespace driftless::testing {

inline WeightLayout golden_layout() {
  return layout_of({spec("lm_head.weight", DType::kBF16, {4, 5}),
                    spec("model.embed_tokens.weight", DType::kBF16, {400, 500}),
                    spec("model.experts.weight", DType::kBF16, {1ULL << 17, 1ULL << 16}),
                    spec("model.norm.bias", DType::kF32, {64})});
}

// A delta of tensor `tensor` whose values are a pattern of their places.
inline OwnedDelta golden_delta(const WeightLayout& layout, std::uint32_t tensor,
                               std::uint64_t origin, std::vector<std::uint32_t> offsets) {
  OwnedDelta delta{tensor, unit_bytes(layout[tensor].dtype), origin, std::move(offsets), {}};
  for (std::size_t k = 0; k < delta.offsets.size() * delta.unit_bytes; ++k) {
    delta.values.push_back(static_cast<std::byte>(0x3c + 7 * k + tensor));
  }
  return delta;
}

// Gaps of all three widths: the last tensor has 2^33 units.
inline BucketBuilder golden_bucket(const WeightLayout& layout, Encoding encoding) {
  BucketBuilder builder(layout, encoding);
  for (const OwnedDelta& delta :
       {golden_delta(layout, 0, 0, {0, 1, 7, 19}),
        golden_delta(layout, 1, 0, {5, 100'000, 199'999}), golden_delta(layout, 2, 3, {0, 2}),
        golden_delta(layout, 2, (1ULL << 33) - 1, {0})}) {
    if (!builder.add(delta.view()).ok()) return BucketBuilder(layout, encoding);
  }
  return builder;
}

// Changes of one tensor at equal distances: zstd compresses these.
inline BucketBuilder golden_even_bucket(const WeightLayout& layout) {
  BucketBuilder builder(layout, Encoding::kDeltasZstd);
  std::vector<std::uint32_t> offsets;
  for (std::uint32_t k = 0; k < 600; ++k) offsets.push_back(10 * k);
  if (!builder.add(golden_delta(layout, 1, 7, offsets).view()).ok()) std::abort();
  return builder;
}

// Two tensors, one of them in two runs; the last run reaches its tensor's end.
struct GoldenRun {
  std::uint32_t tensor = 0;
  std::uint64_t first_unit = 0;
  Bytes bytes;
};
inline std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> runs{{0, 0, Bytes(10)}, {0, 7, Bytes(6)}, {2, (1ULL << 33) - 3, Bytes(6)}};
  for (GoldenRun& run : runs) {
    for (std::size_t k = 0; k < run.bytes.size(); ++k) {
      run.bytes[k] = static_cast<std::byte>(0x51 + 5 * k + run.tensor);
    }
  }
  return runs;
}
inline std::vector<DenseRun> views_of(const std::vector<GoldenRun>& runs) {
  std::vector<DenseRun> views;
  for (const GoldenRun& run : runs) views.push_back({run.tensor, run.first_unit, run.bytes});
  return views;
}

// Blocks of two tensors: two halves of columns, and a few rows of which some columns are left out.
class GoldenBlocks {
 public:
  explicit GoldenBlocks(const WeightLayout& layout) : layout_(&layout) {
    for (const auto& [tensor, box] : {std::pair<std::uint32_t, TensorBox>{0, {{0, 0}, {4, 2}}},
                                      {0, {{0, 2}, {4, 3}}},
                                      {1, {{100, 0}, {200, 500}}},
                                      {1, {{300, 250}, {100, 250}}}}) {
      blocks_.push_back(TensorBlock::make(tensor, layout[tensor], box).value());
    }
  }

  // Positions count in the block.
  [[nodiscard]] BucketBuilder bucket() const {
    BucketBuilder builder(*layout_, Encoding::kDeltas);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (!builder.add(delta(i).view(), &blocks_[i]).ok()) std::abort();
    }
    return builder;
  }
  // Positions in the tensor.
  [[nodiscard]] Changes changes() const {
    Changes all;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Changes inside;
      note(inside, delta(i).view());
      for (const auto& [position, value] : inside[blocks_[i].tensor]) {
        all[blocks_[i].tensor][blocks_[i].place.at(position)] = value;
      }
    }
    return all;
  }
  [[nodiscard]] std::vector<DenseRun> runs() const {
    return {{0, 1, std::span(values_).first(8), &blocks_[0]},
            {0, 6, std::span(values_).first(4), &blocks_[0]},
            {0, 0, std::span(values_).first(24), &blocks_[1]},
            {1, 24'999, std::span(values_).first(2), &blocks_[3]}};
  }
  [[nodiscard]] std::span<const TensorBlock> blocks() const { return blocks_; }

 private:
  [[nodiscard]] OwnedDelta delta(std::size_t block) const {
    const std::vector<std::vector<std::uint32_t>> offsets{
        {0, 1, 2, 7}, {3, 11}, {0, 99'999}, {1, 250, 24'999}};
    return golden_delta(*layout_, blocks_[block].tensor, 0, offsets[block]);
  }

  const WeightLayout* layout_;
  std::vector<TensorBlock> blocks_;
  Bytes values_ = golden_delta(*layout_, 1, 0, std::vector<std::uint32_t>(16)).values;
};

inline FrameContext golden_context(const WeightLayout& layout, Encoding encoding) {
  return {{{0x0123456789abcdef, 0xfedcba9876543210}, 7}, 6, layout.signature(), encoding, 2, 5};
}

// The tensor of the payloads, before and after.
inline TensorSpec golden_tensor() { return spec("model.norm.weight", DType::kBF16, {1000}); }
inline Bytes golden_old_bytes() {
  Bytes bytes(2000);
  for (std::size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<std::byte>(k * k + 3 * k);
  return bytes;
}
inline Bytes golden_new_bytes() {
  Bytes bytes = golden_old_bytes();
  for (std::size_t k = 0; k < bytes.size(); k += 1 + k % 97) bytes[k] ^= std::byte{0x11};
  return bytes;
}

}  // namespace driftless::testing
