// SPDX-License-Identifier: Apache-2.0
// StageClock: how long one rank compares, encodes and sends one publication. The stages overlap, so
// each stage's time is its busy time; with several writers, their mean. Any thread may add times;
// read them when the payload has finished.
#pragma once

#include <algorithm>
#include <atomic>

#include "collectives/road.h"
#include "core/stopwatch.h"

namespace driftless {

// Busy times of one rank.
struct StageTimes {
  double compare_ms = 0;  // finds and collects the changes
  double encode_ms = 0;   // makes frames or files
  double send_ms = 0;     // creates, writes and flushes parts on the road

  StageTimes& operator+=(const StageTimes& more) {
    compare_ms += more.compare_ms;
    encode_ms += more.encode_ms;
    send_ms += more.send_ms;
    return *this;
  }
};

class StageClock {
 public:
  // The time that background writers worked, sending included, and the time that their callers
  // waited.
  void add_work(double ms) { work_ms_ += ms; }
  void add_wait(double ms) { wait_ms_ += ms; }
  void add_send(double ms) { send_ms_ += ms; }
  void has_writer() { writer_ = true; }
  // How many writers work at a time.
  void has_writers(unsigned count) { writers_ = std::max(writers_, count); }

  // Call it when all changes were handed over. `fill_ms`: the calling thread's time until then.
  void filled(double fill_ms) {
    direct_ms_ = writer_ ? 0 : send_ms_.load();
    filled_wait_ms_ = wait_ms_;
    compare_ms_ = fill_ms - filled_wait_ms_ - direct_ms_;
  }
  // `finish_ms`: the calling thread's time from filled() until all writers finished.
  [[nodiscard]] StageTimes finished(double finish_ms) const {
    const double waited = wait_ms_ - filled_wait_ms_;
    const double writer_send_ms = (send_ms_ - direct_ms_) / writers_;  // sent by writers
    const double encoding = work_ms_ / writers_ + finish_ms - waited - writer_send_ms;
    return {std::max(compare_ms_, 0.0), std::max(encoding, 0.0), direct_ms_ + writer_send_ms};
  }

 private:
  std::atomic<double> work_ms_ = 0, wait_ms_ = 0, send_ms_ = 0;
  bool writer_ = false;  // false: the calling thread sends
  unsigned writers_ = 1;
  double direct_ms_ = 0;  // sent by the calling thread before filled()
  double filled_wait_ms_ = 0, compare_ms_ = 0;
};

// The part of a road that payloads use. Adds the time that parts take to the clock.
class PartRoad {
 public:
  PartRoad(SendRoad& road, StageClock& clock) : road_(road), clock_(clock) {}
  [[nodiscard]] MemoryKind part_memory() const { return road_.part_memory(); }
  [[nodiscard]] Result<std::unique_ptr<File>> create_part(const std::string& name);
  [[nodiscard]] bool writes_at_once() const { return road_.writes_at_once(); }

 private:
  SendRoad& road_;
  StageClock& clock_;
};

}  // namespace driftless
