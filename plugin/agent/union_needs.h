// SPDX-License-Identifier: Apache-2.0
// UnionNeeds: what the workers of a host need of a version, together.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/road.h"
#include "core/block.h"
#include "formats/receiver_needs.h"

namespace driftless {

class UnionNeeds {
 public:
  // The run that text() names.
  void set_run(const Hash128& run) { run_ = run; }
  // What a worker needs is needed from now on: one that was started again finds what it missed. One
  // that says nothing, or something that cannot be read, needs everything. Whether it is news.
  bool add(const WeightLayout& layout, const ReceiverReport& report);

  [[nodiscard]] std::size_t workers() const { return heard_.size(); }
  [[nodiscard]] bool everything() const { return everything_; }
  // Whether a worker needs any of the block; null: of the tensor.
  [[nodiscard]] bool has(std::uint32_t tensor, const TensorBlock* block) const;
  // As one receiver's announcement: of each tensor the least slice that has all of theirs; and what
  // all of them read. They have the old values if all do, and each holds what is announced: blocks
  // are cut to one slice of a tensor.
  [[nodiscard]] std::string text(const WeightLayout& layout) const;
  // How fast the last version came, and was made ready; announced with the rest.
  void note_speed(std::uint64_t bytes_per_s, std::uint64_t units_per_s) {
    bytes_per_s_ = bytes_per_s;
    units_per_s_ = units_per_s;
  }
  // Whether each of them holds the old values of what text() announces.
  [[nodiscard]] bool old_values() const;

 private:
  struct Heard {
    std::string text;
    std::optional<ReceiverNeeds> needs;  // without its speeds; nothing if they cannot be read
  };
  Hash128 run_;
  std::map<std::string, Heard> heard_;           // by worker
  std::vector<std::set<TensorNeed>> of_tensor_;  // kAll and slices
  bool everything_ = false;
  bool sliced_ = false;  // one holds slices
  bool old_values_ = true;
  std::set<Encoding> unread_;  // by one of them
  std::uint64_t bytes_per_s_ = 0, units_per_s_ = 0;
};

}  // namespace driftless
