// SPDX-License-Identifier: Apache-2.0
// Ranks of a made-up engine, each with a share of a policy's weights by a random plan: rows and
// columns, replicas on several ranks, tied copies within one rank, and parameters that are
// transposed, strided or widened.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "plugin/targets/mapped_target.h"
#include "support/published_run.h"
#include "support/weight_memory_under_test.h"

namespace driftless::testing {

// Makes signalling NaNs of float16 quiet, because widening would change them.
inline Weights quiet(Weights weights) {
  for (auto& [name, tensor] : weights) {
    for (std::size_t at = 0; tensor.dtype == DType::kF16 && at < tensor.bytes.size(); at += 2) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, tensor.bytes.data() + at, 2);
      if ((bits & 0x7fffU) > 0x7c00U) bits |= 0x200U;
      std::memcpy(tensor.bytes.data() + at, &bits, 2);
    }
  }
  return weights;
}

// Several widths, matrices whose rows end within words.
inline Weights shardable_weights(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  weights["a.qkv.weight"] = random_tensor(DType::kBF16, {24, 33}, random);
  weights["b.norm.weight"] = random_tensor(DType::kF16, {12, 40}, random);
  weights["c.bias"] = random_tensor(DType::kF32, {18, 7}, random);
  weights["d.scale"] = random_tensor(DType::kF8E4M3, {16, 31}, random);
  weights["e.counter"] = random_tensor(DType::kI64, {8, 2}, random);
  weights["f.still.weight"] = random_tensor(DType::kBF16, {30, 10}, random);
  return quiet(std::move(weights));
}

class RankWeights {
 public:
  RankWeights(const WeightLayout& layout, std::uint32_t number)
      : layout_(layout), number_(number) {}

  // A block of a tensor (rows x columns), as one parameter.
  void add(std::uint32_t tensor, std::uint64_t row, std::uint64_t rows, std::uint64_t column,
           std::uint64_t columns, std::mt19937_64& random) {
    const std::uint64_t width = layout_[tensor].shape[1];
    WeightMap made;
    made.tensor = tensor;
    const DType dtype = layout_[tensor].dtype;
    const bool widened = (dtype == DType::kBF16 || dtype == DType::kF16) && random() % 3 == 0;
    made.cast = widened ? *value_cast(dtype, DType::kF32) : ValueCast::kNone;
    made.unit_bytes = widened ? 4 : unit_bytes(dtype);
    made.parameter = concat("rank", number_, ".parameter", maps_.size());
    const std::uint64_t gap = random() % 4, before = random() % 5;
    const bool transposed = random() % 3 == 0;
    const std::uint64_t outer = transposed ? columns : rows, inner = transposed ? rows : columns;
    const std::uint64_t room = before + outer * (inner + gap) + 1;
    const std::vector<std::uint64_t> strides = transposed
                                                   ? std::vector<std::uint64_t>{1, inner + gap}
                                                   : std::vector<std::uint64_t>{inner + gap, 1};
    const auto map =
        StridedMap::make({row * width + column, {rows, columns}, {width, 1}},
                         layout_[tensor].units(), {before, {rows, columns}, strides}, room);
    ASSERT_TRUE(map.ok()) << map.status().to_string();
    made.map = *map;
    made.data = memory_->allocate(room * made.unit_bytes);
    maps_.push_back(made);
  }

  void load(const Weights& weights) {
    for (const WeightMap& map : maps_) {
      const TestTensor& tensor = weights.at(layout_[map.tensor].name);
      const unsigned from = source_bytes(map.cast, map.unit_bytes);
      for (std::uint64_t unit = 0; unit < layout_[map.tensor].units(); ++unit) {
        const std::uint64_t at = map.map.target_of(unit);
        if (at == StridedMap::kOutside) continue;
        std::vector<std::byte> value(map.unit_bytes);
        convert_values(map.cast, map.unit_bytes, tensor.bytes.data() + unit * from, 1,
                       value.data());
        memory_->write(map.data + at * map.unit_bytes, value);
      }
    }
  }

  void open(const MappedOptions& base) {
    MappedParts parts;
    parts.layout = layout_;
    parts.maps = maps_;
    parts.memory = memory_->memory();
    MappedOptions options = base;
    options.rank = number_;
    options.threads = 2;
    auto made = make_mapped_target(std::move(parts), options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    target_ = std::move(*made);
  }

  // Flips a bit of one unit that any map, or any map of this tensor, has. Returns the parameter's
  // name.
  std::string flip(std::mt19937_64& random, std::optional<std::uint32_t> tensor = {}) {
    std::vector<WeightMap> maps = maps_;
    if (tensor) std::erase_if(maps, [&](const WeightMap& each) { return each.tensor != *tensor; });
    if (maps.empty()) return "nothing";
    const WeightMap& map = maps[random() % maps.size()];
    std::uint64_t at = StridedMap::kOutside;
    while (at == StridedMap::kOutside) {
      at = map.map.target_of(random() % layout_[map.tensor].units());
    }
    std::byte* const place = map.data + at * map.unit_bytes + random() % map.unit_bytes;
    const std::byte value =
        memory_->read(place, 1).front() ^ static_cast<std::byte>(1U << (random() % 8));
    memory_->write(place, std::span(&value, 1));
    return map.parameter;
  }

  [[nodiscard]] bool holds_any() const { return !maps_.empty(); }
  [[nodiscard]] MappedTarget& target() { return *target_; }
  [[nodiscard]] std::uint32_t number() const { return number_; }

 private:
  WeightLayout layout_;
  std::uint32_t number_;
  std::unique_ptr<TestMemory> memory_ = test_memory();
  std::vector<WeightMap> maps_;
  std::unique_ptr<MappedTarget> target_;
};

class ShardedWeights {
 public:
  ShardedWeights(const PublishedRun& run, std::uint64_t seed) : layout_(run.layout) {
    std::mt19937_64 random(seed);
    const auto count = static_cast<std::uint32_t>(1 + random() % 4);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      ranks_.push_back(std::make_unique<RankWeights>(layout_, rank));
    }
    for (std::uint32_t tensor = 0; tensor < layout_.size(); ++tensor) cut(tensor, random);
    std::erase_if(ranks_, [](const auto& rank) { return !rank->holds_any(); });
    MappedOptions options;
    options.initial = VersionId{};
    options.initial_digest = digest_of(run.weights[0]);
    for (const auto& rank : ranks_) {
      rank->load(run.weights[0]);
      rank->open(options);
    }
  }

  [[nodiscard]] std::vector<std::unique_ptr<RankWeights>>& ranks() { return ranks_; }

  // Shares of different regions add up to every tensor; those of one region are the same.
  void expect_adds_up(const Weights& weights) const {
    for (std::uint32_t tensor = 0; tensor < layout_.size(); ++tensor) {
      std::map<Hash128, TensorShare> regions;
      for (const auto& rank : ranks_) {
        for (const TensorShare& share : rank->target().tracked().tensors) {
          if (share.tensor != tensor) continue;
          EXPECT_EQ(regions.try_emplace(share.region, share).first->second, share);
        }
      }
      Digest sum;
      std::uint64_t units = 0;
      for (const auto& [region, share] : regions) {
        sum += share.digest;
        units += share.units;
      }
      const std::string& name = layout_[tensor].name;
      EXPECT_EQ(units, layout_[tensor].units()) << name;
      EXPECT_EQ(sum, digest_of({{name, weights.at(name)}})) << name;
    }
  }

 private:
  // Divides a tensor by rows or columns, each part for one or more ranks, which divide it further.
  void cut(std::uint32_t tensor, std::mt19937_64& random) {
    const std::uint64_t rows = layout_[tensor].shape[0], columns = layout_[tensor].shape[1];
    const bool by_rows = random() % 2 == 0;
    const std::uint64_t size = by_rows ? rows : columns;
    const std::uint64_t parts = std::min<std::uint64_t>(size, 1 + random() % ranks_.size());
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t begin = size * part / parts, end = size * (part + 1) / parts;
      for (std::size_t rank = part; rank < ranks_.size(); rank += parts) {
        place(*ranks_[rank], tensor, by_rows, begin, end, random);
        if (random() % 4 == 0) place(*ranks_[rank], tensor, by_rows, begin, end, random);  // tied
      }
    }
  }
  void place(RankWeights& rank, std::uint32_t tensor, bool by_rows, std::uint64_t begin,
             std::uint64_t end, std::mt19937_64& random) {
    const std::uint64_t rows = layout_[tensor].shape[0], columns = layout_[tensor].shape[1];
    const std::uint64_t middle = random() % 2 == 0 ? end : begin + random() % (end - begin);
    for (const auto& [first, last] : {std::pair{begin, middle}, std::pair{middle, end}}) {
      if (first == last) continue;
      if (by_rows) rank.add(tensor, first, last - first, 0, columns, random);
      if (!by_rows) rank.add(tensor, 0, rows, first, last - first, random);
    }
  }

  WeightLayout layout_;
  std::vector<std::unique_ptr<RankWeights>> ranks_;
};

}  // namespace driftless::testing
