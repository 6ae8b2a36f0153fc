// SPDX-License-Identifier: Apache-2.0
// Group: the publisher ranks of one trainer agree through it, by small messages to and from rank 0.
//
// All ranks call gather() and broadcast() in the same order within an epoch. If a call fails on one
// rank (another rank died or was too late), the other ranks wait no longer than their deadlines.
// begin_epoch() then starts again and drops messages of earlier epochs. One thread at a time.
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

  // Epochs ascend, and every rank passes the same number. Does not wait.
  virtual void begin_epoch(std::uint64_t epoch) = 0;
  // Begins the epoch after the last one that next_epoch() began; every rank calls it equally often.
  // With a step (below kStepLimit) the epoch is at least the first one of that step, so that ranks
  // that missed calls meet again there.
  void next_epoch(std::optional<std::uint64_t> step = std::nullopt) {
    epoch_ = std::max(epoch_ + 1, step ? (*step + 1) << kStepShift : 0);
    begin_epoch(epoch_);
  }
  static constexpr unsigned kStepShift = 16;  // 2^16 epochs for each step
  static constexpr std::uint64_t kStepLimit = std::uint64_t{1} << 47;
  // Sends `message` to rank 0. Rank 0 gets the messages of all ranks, indexed by rank; the other
  // ranks get an empty vector. kDeadlineExceeded names the ranks that sent nothing.
  [[nodiscard]] virtual Result<std::vector<std::string>> gather(std::string_view message,
                                                                const Deadline& deadline) = 0;
  // Returns rank 0's message on every rank. Ignores `message` on the other ranks.
  [[nodiscard]] virtual Result<std::string> broadcast(std::string_view message,
                                                      const Deadline& deadline) = 0;

 private:
  std::uint64_t epoch_ = 0;
};

// A group with a single rank.
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
