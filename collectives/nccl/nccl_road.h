// SPDX-License-Identifier: Apache-2.0
// nccl: publisher ranks broadcast frames from their GPU to the GPUs of all receivers, each rank
// over a communicator of its own. docs/roads/nccl.md tells the whole story.
//
// NCCL pushes, a road is pulled: a receiver has a thread that takes part in every broadcast from
// the version on at which it joined, acknowledges what it got with its hashes, and holds the last
// versions in device memory; list() and fetch_part() answer from there. The small things (who is
// there, names, sizes, hashes, acknowledgements, manifests) travel over a rendezvous
// (rendezvous.h), whose hub is the leading publisher rank.
//
// seal() is ok only when every receiver of the group has acknowledged the version. A peer that dies
// or is late breaks the communicator: it is aborted, the version fails with a status within its
// deadline, and the next one goes to who is there. A receiver that joins late, or again, finds
// that versions are missing, and asks for an anchor as on any other road.
//
// A road is put together from a fabric (fabric.h) and a rendezvous; tests have fabrics of their
// own.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/nccl/fabric.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/road.h"

namespace driftless {

// CUDA memory of options.device, and NCCL. One for each process. kUnsupported if there is no
// such GPU. Threads other than the caller's keep their current device.
[[nodiscard]] Result<std::shared_ptr<nccl::Fabric>> make_nccl_fabric(const NcclOptions& options);

namespace nccl {

using hub::Connector;
using hub::Hub;

// Of the leading publisher rank, with a thread that answers the others.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_leading_sender(const NcclOptions& options,
                                                                    unsigned ranks,
                                                                    std::shared_ptr<Fabric> fabric,
                                                                    std::unique_ptr<Hub> hub);
// Of any other publisher rank.
[[nodiscard]] std::unique_ptr<SendRoad> make_other_sender(const NcclOptions& options, unsigned rank,
                                                          unsigned ranks,
                                                          std::shared_ptr<Fabric> fabric,
                                                          Connector connector);
// With a thread that follows: it joins the group as soon as there is a leader, and receives what is
// published from then on. One road for each receiver.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(const NcclOptions& options,
                                                                 std::shared_ptr<Fabric> fabric,
                                                                 Connector connector);

}  // namespace nccl
}  // namespace driftless
