// SPDX-License-Identifier: Apache-2.0
// UnionNeeds: the needs of all workers of a host together.
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
  // Sets the run that text() names.
  void set_run(const Hash128& run) { run_ = run; }
  // Adds a worker's needs, which are kept from now on, so that a restarted worker finds the
  // versions that it missed. A worker whose report has no needs, or unreadable ones, needs
  // everything. Returns whether this is new.
  bool add(const WeightLayout& layout, const ReceiverReport& report);

  [[nodiscard]] std::size_t workers() const { return workers_.size(); }
  [[nodiscard]] bool everything() const { return everything_; }
  // Whether a worker needs any part of the block (null: of the tensor).
  [[nodiscard]] bool has(std::uint32_t tensor, const TensorBlock* block) const;
  // The union as one receiver's announcement: for each tensor the smallest slice that covers all
  // their slices, and the encodings that all of them read. It announces old values only if all
  // workers have them, and all hold the same slice of each tensor, to which blocks are cut.
  [[nodiscard]] std::string text(const WeightLayout& layout) const;
  // The measured speed of fetching and preparing the last version; announced with the rest.
  void note_speed(std::uint64_t bytes_per_s, std::uint64_t units_per_s) {
    bytes_per_s_ = bytes_per_s;
    units_per_s_ = units_per_s;
  }
  // Whether each worker holds the old values of what text() announces.
  [[nodiscard]] bool old_values() const;

 private:
  struct WorkerNeeds {
    std::string text;
    std::optional<ReceiverNeeds> needs;  // without speeds; nothing if unreadable
  };
  Hash128 run_;
  std::map<std::string, WorkerNeeds> workers_;   // by worker
  std::vector<std::set<TensorNeed>> of_tensor_;  // kAll, and slices
  bool everything_ = false;
  bool sliced_ = false;  // a worker holds slices
  bool old_values_ = true;
  std::set<Encoding> unread_;  // encodings that at least one worker does not read
  std::uint64_t bytes_per_s_ = 0, units_per_s_ = 0;
};

}  // namespace driftless
