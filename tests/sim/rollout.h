// SPDX-License-Identifier: Apache-2.0
// A rollout in the simulation: a process that keeps weights up to date by a Receiver, and serves
// them between a resume and the next pause.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/receive/receiver.h"
#include "sim/world.h"

namespace driftless::testing {

enum class Holds {
  kAll,         // tensors in memory
  kSome,        // the same without some of them
  kSlice,       // a rank's half of every tensor, through maps
  kCheckpoint,  // a directory on a disk of its own
  kLoader,      // tensors in memory, one of them written by an engine's loader
};

// What a rollout starts from.
enum class StartsFrom { kBase, kNothing, kAnotherBase, kWhatIsThere, kClaim };

// A version number that somebody stored, and the weights that are claimed to be that version.
struct StoredClaim {
  VersionId id;
  Weights weights;
};

class Rollout {
 public:
  // `part`: which half of the tensors, or of their rows.
  Rollout(World& world, std::string name, Holds holds, unsigned part);

  // `base`: the operator's belief about the base of the run; `claim` is used with kClaim.
  void start(const Weights& base, StartsFrom from, StoredClaim claim = {});
  [[nodiscard]] bool running() const { return process_ != nullptr && process_->fibers > 0; }
  [[nodiscard]] Process* process() { return process_.get(); }
  [[nodiscard]] SimDisk& disk() { return disk_; }
  [[nodiscard]] Holds holds() const { return holds_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // The version that it claims to hold, if it serves.
  [[nodiscard]] std::optional<VersionId> claim() const;

  // Compares the served weights with the claim. Empty: they agree, or nothing is served.
  [[nodiscard]] std::string check();

  // Another program writes to the weights: one byte in place, or it replaces the files of a
  // checkpoint. False: there are no weights now.
  bool scribble();
  bool restore_files(const Weights& weights);
  static void write_base(SimDisk& disk, const Weights& weights);

 private:
  // One life of the process.
  struct Life {
    Process* process = nullptr;
    Weights memory;
    std::unique_ptr<SimFileSystem> road_fs, disk_fs;
    std::unique_ptr<ReceiveRoad> road;
    std::unique_ptr<WeightTarget> target;
    std::unique_ptr<Receiver> receiver;
    bool serving = false;
    bool committing = false;
    // A byte was written at a place that a delta need not check. True until a full version that was
    // staged later, or until the next start.
    bool scribbled = false, scribbled_since_staging = false;
    bool restored = false;  // until the next commit, which must check
  };

  Status run(Life& life, const Weights& base, StartsFrom from, const StoredClaim& claim);
  Status make_road(Life& life);
  Status make_target(Life& life, const Weights& base, StartsFrom from, const StoredClaim& claim);
  Status follow(Life& life);
  Status commit(Life& life);
  Status roll_back(Life& life);
  [[nodiscard]] bool holds_exactly(const Life& life, const Weights& weights) const;
  [[nodiscard]] bool has_tensor(std::size_t index) const { return index % 2 == part_; }

  World& world_;
  const std::string name_;
  const Holds holds_;
  const unsigned part_;
  SimDisk disk_;
  std::shared_ptr<Process> process_;
  Life* life_ = nullptr;
  std::uint64_t checked_changes_ = ~std::uint64_t{0};
  VersionId checked_;
};

}  // namespace driftless::testing
