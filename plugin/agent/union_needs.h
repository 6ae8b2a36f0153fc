// SPDX-License-Identifier: Apache-2.0
// UnionNeeds: what the workers of a host need of a version, together.
#pragma once

#include <set>

#include "collectives/road.h"
#include "core/block.h"
#include "formats/receiver_needs.h"

namespace driftless {

class UnionNeeds {
 public:
  // What a worker needs is needed from now on: one that was started again finds what it missed. One
  // that says nothing, or something that cannot be read, needs everything. Whether it is news.
  bool add(const WeightLayout& layout, const ReceiverReport& report);

  [[nodiscard]] std::size_t workers() const { return heard_.size(); }
  [[nodiscard]] bool everything() const { return everything_; }
  // Whether a worker needs any of the block; null: of the tensor.
  [[nodiscard]] bool has(std::uint32_t tensor, const TensorBlock* block) const;
  // As one receiver's announcement: of each tensor the least slice that has all of theirs.
  [[nodiscard]] std::string text(const WeightLayout& layout) const;

 private:
  std::map<std::string, std::string> heard_;     // by worker
  std::vector<std::set<TensorNeed>> of_tensor_;  // kAll and slices
  bool everything_ = false;
};

}  // namespace driftless
