// SPDX-License-Identifier: Apache-2.0
// Tracks the receivers that patch checkpoint directories by their reports, and decides whether an
// engine may be asked to load its checkpoint as a version. One thread.
#pragma once

#include <map>
#include <span>

#include "collectives/road.h"

namespace driftless {

class CheckpointPatchers {
 public:
  // Takes all current reports of the run. A checkpoint whose receiver signed off or vanished is
  // remembered until a receiver patches that directory again, on the same host, or on another one
  // (a container that was restarted).
  void listen(std::span<const ReceiverReport> reports);
  // Ok if the checkpoint that an engine sees at `directory` is at the version with this digest
  // (hex). The receivers that announce that directory must have reported so; if none announces it,
  // because they see other paths, all receivers that patch a checkpoint must. Otherwise
  // kIncomplete, with their reports.
  [[nodiscard]] Status check(const std::string& directory, std::uint64_t version,
                             const std::string& digest) const;

 private:
  struct Place {
    std::string directory, host;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Patcher {
    std::string id;                       // of its last receiver
    std::vector<ReceiverReport> reports;  // empty: the receiver is gone
  };
  std::map<Place, Patcher> seen_;
  std::size_t others_ = 0;  // receivers that patch no checkpoint
};

}  // namespace driftless
