// SPDX-License-Identifier: Apache-2.0
// The findings of `driftless status` after one look at a source, and the problems in them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/observe/run_status.h"

namespace driftless {

struct Sighting {
  RunStatus status;
  std::string why;                     // the reason for the trainer's state
  std::vector<std::string> damaged{};  // what is damaged, missing or mixed
  std::vector<std::string> notes{};    // what was skipped
  bool stalled = false;  // the trainer's process is alive, but has made no version for too long
};

// Judges the trainer by the ages of its versions. These can show that a trainer is silent, but
// never that it is alive. It is silent if its newest version is older than ten times the usual
// interval between two versions, and than a minute. `gone`: the publisher's process is known to
// have ended; then twice the interval and five seconds suffice. Sets the state (kUnknown unless it
// is silent) and the reason: "last version 12 s ago, usually one every 3 s".
void judge_by_age(Sighting& sighting, Moment now, bool gone = false);

// The problems that an operator must look at; empty: all is well. docs/operate/status.md has the
// rules.
[[nodiscard]] std::vector<std::string> problems(const Sighting& sighting);

// A duration as text: "12 s", "3 min", "4 h", "2 days".
[[nodiscard]] std::string human_time(std::chrono::milliseconds time);
[[nodiscard]] std::uint64_t lag(const RunStatus& status, std::uint64_t version);

}  // namespace driftless
