// SPDX-License-Identifier: Apache-2.0
// The receivers that patch checkpoint directories, as their reports say: whether an engine may be
// told to load its checkpoint as a version. One thread.
#pragma once

#include <map>
#include <span>

#include "collectives/road.h"

namespace driftless {

class CheckpointPatchers {
 public:
  // All reports of the run, as they are now. A checkpoint whose receiver signed off or vanished is
  // remembered until a receiver patches that directory again: on the same host, or as the first one
  // on another, as a container that was started anew has it.
  void listen(std::span<const ReceiverReport> reports);
  // Ok if the checkpoint that an engine sees at `directory` is at the version, with this digest
  // (hex): the receivers that announce that directory have reported so or, if none does because
  // they see other paths, all that patch one. Else kIncomplete, with what they said.
  [[nodiscard]] Status check(const std::string& directory, std::uint64_t version,
                             const std::string& digest) const;

 private:
  struct Place {
    std::string directory, host;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Patcher {
    std::string id;                       // of its receiver, the last one
    std::vector<ReceiverReport> reports;  // none: it is gone
  };
  std::map<Place, Patcher> seen_;
  std::size_t others_ = 0;  // receivers that patch none
};

}  // namespace driftless
