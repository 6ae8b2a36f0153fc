// SPDX-License-Identifier: Apache-2.0
// Weights in a memory under test, contiguous or spread over parameters as an engine keeps them. The
// expected content is computed in the obvious way.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugin/targets/mapped_target.h"
#include "support/weight_memory_under_test.h"
#include "support/weights.h"

namespace driftless::testing {

// kSpread: every tensor is strided or divided in two, and bfloat16 tensors have a second copy as
// float32.
enum class Shape : unsigned char { kContiguous, kSpread };

class WeightsInMemory {
 public:
  WeightsInMemory(const WeightLayout& layout, Shape shape, const Weights& weights)
      : layout_(layout) {
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const std::uint64_t units = layout[tensor].units();
      if (units == 0) continue;
      if (shape == Shape::kContiguous) {
        add(tensor, 0, units, 0, 1);
      } else if (tensor % 2 == 0) {
        add(tensor, 0, units, 2, 3);
      } else {
        add(tensor, 0, units / 3, 5, 1);
        add(tensor, units / 3, units - units / 3, 0, 2);
      }
      if (shape == Shape::kSpread && layout[tensor].dtype == DType::kBF16) {
        add(tensor, 0, units, 1, 1, ValueCast::kBF16ToF32);
      }
    }
    load(weights);
  }

  void load(const Weights& weights) {
    for (const auto& [data, bytes] : expected(weights)) memory_->write(data, bytes);
  }
  // Compares bit for bit; also expects that nothing around the weights was written.
  [[nodiscard]] bool holds(const Weights& weights) const {
    for (const auto& [data, bytes] : expected(weights)) {
      if (memory_->read(data, bytes.size()) != bytes) return false;
    }
    return true;
  }
  [[nodiscard]] std::size_t maps() const { return maps_.size(); }
  [[nodiscard]] std::uint32_t tensor_of(std::size_t map) const { return maps_[map].tensor; }
  // Flips a bit of a tensor's unit in one map; false if the map does not have the unit.
  bool flip(std::size_t map, std::uint64_t unit) const {
    const WeightMap& weight_map = maps_[map];
    const std::uint64_t at = weight_map.map.target_of(unit);
    if (at == StridedMap::kOutside) return false;
    std::byte* const place = weight_map.data + at * weight_map.unit_bytes;
    const std::byte value = memory_->read(place, 1).front() ^ std::byte{0x40};
    memory_->write(place, std::span(&value, 1));
    return true;
  }

  // Without the tensor `missing`.
  [[nodiscard]] std::unique_ptr<MappedTarget> open(std::optional<VersionId> initial,
                                                   std::optional<std::uint32_t> missing = {}) {
    MappedParts parts;
    parts.layout = layout_;
    for (const WeightMap& map : maps_) {
      if (map.tensor != missing) parts.maps.push_back(map);
    }
    parts.memory = memory_->memory();
    MappedOptions options;
    options.initial = initial;
    options.threads = 2;
    options.digest_of_held = true;
    auto made = make_mapped_target(std::move(parts), options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }

 private:
  // Maps units [first, first + count) of the tensor to offset, offset + stride, ... of a parameter.
  void add(std::uint32_t tensor, std::uint64_t first, std::uint64_t count, std::uint64_t offset,
           std::uint64_t stride, ValueCast cast = ValueCast::kNone) {
    const std::uint64_t room = offset + count * stride + 3;
    WeightMap made;
    made.tensor = tensor;
    made.unit_bytes =
        cast == ValueCast::kNone ? unit_bytes(layout_[tensor].dtype) : 4;  // to float32
    made.cast = cast;
    made.parameter = concat("parameter ", maps_.size());
    const auto map = StridedMap::make({first, {count}, {1}}, layout_[tensor].units(),
                                      {offset, {count}, {stride}}, room);
    ASSERT_TRUE(map.ok()) << map.status().to_string();
    made.map = *map;
    sizes_.push_back(room * made.unit_bytes);
    made.data = memory_->allocate(sizes_.back());
    maps_.push_back(made);
  }

  // The expected content of each parameter.
  [[nodiscard]] std::map<std::byte*, std::vector<std::byte>> expected(
      const Weights& weights) const {
    std::map<std::byte*, std::vector<std::byte>> all;
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const WeightMap& map = maps_[i];
      std::vector<std::byte>& held = all[map.data];
      held.resize(sizes_[i]);
      const TestTensor& tensor = weights.at(layout_[map.tensor].name);
      const unsigned from = source_bytes(map.cast, map.unit_bytes);
      for (std::uint64_t unit = 0; unit < tensor.bytes.size() / from; ++unit) {
        const std::uint64_t at = map.map.target_of(unit);
        if (at == StridedMap::kOutside) continue;
        // Little-endian: a widened bfloat16 is two zero bytes and then its own.
        std::memcpy(held.data() + at * map.unit_bytes + (map.unit_bytes - from),
                    tensor.bytes.data() + unit * from, from);
      }
    }
    return all;
  }

  WeightLayout layout_;
  std::unique_ptr<TestMemory> memory_ = test_memory();
  std::vector<WeightMap> maps_;
  std::vector<std::size_t> sizes_;  // per map: bytes of its parameter
};

}  // namespace driftless::testing
