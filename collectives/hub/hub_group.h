// SPDX-License-Identifier: Apache-2.0
// The publisher ranks' group over the hub: of trainers that a launcher started without MPI.
//
// Rank 0 serves it, the others join. A process that has joined stays the only one of its rank. If
// its link is lost it makes a new one, and what was on its way is sent again. A process of another
// attempt, or a second one of a rank, is refused: so the ranks of two starts of a job never
// exchange a message.
#pragma once

#include "collectives/group.h"
#include "collectives/hub/port.h"

namespace driftless::hub {

struct GroupPlace {
  unsigned rank = 0;
  unsigned size = 1;
  std::string attempt = {};       // of the launcher (core/launch.h); the same on all ranks
  std::string service = "group";  // on the port
};

// Collective: rank 0 waits until all have joined, each other one until it has. kDeadlineExceeded
// names those that have not, and why a process was refused. The group holds the port.
[[nodiscard]] Result<std::unique_ptr<Group>> make_hub_group(std::shared_ptr<Port> port,
                                                            const GroupPlace& place,
                                                            const Deadline& deadline);

}  // namespace driftless::hub
