// SPDX-License-Identifier: Apache-2.0
// The group of publisher ranks over the hub, for trainers that a launcher started without MPI.
//
// Rank 0 serves the group, the others join. Once a process has joined, it remains the only one of
// its rank. If its link is lost, it connects again and sends its last message again. Rank 0 refuses
// a process of another attempt, and a second one of a rank, so ranks of two attempts never exchange
// messages.
#pragma once

#include "collectives/group.h"
#include "collectives/hub/port.h"

namespace driftless::hub {

struct GroupPlace {
  unsigned rank = 0;
  unsigned size = 1;
  std::string attempt = {};       // from the launcher (core/launch.h); equal on all ranks
  std::string service = "group";  // name on the port
};

// Collective: rank 0 waits until all ranks have joined, each other rank until it has joined itself.
// kDeadlineExceeded names the missing ranks, and why a process was refused. Rank 0's group
// keeps the port alive.
[[nodiscard]] Result<std::unique_ptr<Group>> make_hub_group(std::shared_ptr<Port> port,
                                                            const GroupPlace& place,
                                                            const Deadline& deadline);

}  // namespace driftless::hub
