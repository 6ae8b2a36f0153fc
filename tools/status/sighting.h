// SPDX-License-Identifier: Apache-2.0
// What `driftless status` knows of a run after one look at a source, and what is wrong with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/observe/run_status.h"

namespace driftless {

struct Sighting {
  RunStatus status;
  std::string why;                     // what the trainer's state rests on
  std::vector<std::string> damaged{};  // what could not be read, each with its name
  std::vector<std::string> notes{};    // what was passed over
  bool stalled = false;  // the trainer's process is there, and has made no version for too long
};

// Ages of versions never prove that a trainer lives. They prove a silence: the newest version is
// ten times as old as the time that usually passes between two, and a minute old at least. `gone`:
// the publisher's process is known to have ended, so twice that time, and five seconds, is enough.
// Sets the state, unless it is silent to kUnknown, and says why: "last version 12 s ago, usually
// one every 3 s".
void judge_by_age(Sighting& sighting, Moment now, bool gone = false);

// What an operator has to look at; empty: all is well. docs/operate/status.md has the rules.
[[nodiscard]] std::vector<std::string> problems(const Sighting& sighting);

// "12 s", "3 min", "4 h", "2 days".
[[nodiscard]] std::string human_time(std::chrono::milliseconds time);
[[nodiscard]] std::uint64_t lag(const RunStatus& status, std::uint64_t version);

}  // namespace driftless
