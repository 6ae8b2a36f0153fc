// SPDX-License-Identifier: Apache-2.0
// Group: how the publisher ranks of one trainer agree. Small messages only, to and from rank 0.
//
// All ranks call gather() and broadcast() in the same order within an epoch. A call that failed on
// one rank (a peer died, or was too late) leaves the others waiting for no longer than their
// deadlines; begin_epoch() then starts afresh, and messages of earlier epochs are dropped. One
// thread at a time.
#pragma once

#include <algorithm>
#include <optional>

#include "collectives/road.h"

namespace driftless {

class Group {
 public:
  virtual ~Group() = default;
  [[nodiscard]] virtual unsigned rank() const = 0;
  [[nodiscard]] virtual unsigned size() const = 0;
  [[nodiscard]] bool leads() const { return rank() == 0; }

  // Epochs ascend; every rank names the same one. Does not wait.
  virtual void begin_epoch(std::uint64_t epoch) = 0;
  // The epoch after the last one that was begun so; every rank calls it equally often. With a step
  // below kStepLimit, the epoch of that step, unless it is over: ranks that left out calls meet
  // again there.
  void next_epoch(std::optional<std::uint64_t> step = std::nullopt) {
    epoch_ = std::max(epoch_ + 1, step ? (*step + 1) << kStepShift : 0);
    begin_epoch(epoch_);
  }
  static constexpr unsigned kStepShift = 16;  // epochs of one step: versions tried, anchors
  static constexpr std::uint64_t kStepLimit = std::uint64_t{1} << 47;
  // On rank 0 the messages of all ranks, by rank; on the others nothing. kDeadlineExceeded names
  // the ranks that were silent.
  [[nodiscard]] virtual Result<std::vector<std::string>> gather(std::string_view message,
                                                                const Deadline& deadline) = 0;
  // Rank 0's message, on every rank. `message` is looked at on rank 0 only.
  [[nodiscard]] virtual Result<std::string> broadcast(std::string_view message,
                                                      const Deadline& deadline) = 0;

 private:
  std::uint64_t epoch_ = 0;
};

// The group of one.
class SoloGroup final : public Group {
 public:
  [[nodiscard]] unsigned rank() const override { return 0; }
  [[nodiscard]] unsigned size() const override { return 1; }
  void begin_epoch(std::uint64_t) override {}
  Result<std::vector<std::string>> gather(std::string_view message, const Deadline&) override {
    return std::vector<std::string>{std::string(message)};
  }
  Result<std::string> broadcast(std::string_view message, const Deadline&) override {
    return std::string(message);
  }
};

}  // namespace driftless
