// SPDX-License-Identifier: Apache-2.0
// The two sides of the nccl road, over a fabric and a rendezvous. nccl_road.h makes them for NCCL;
// tests make them for other fabrics.
#pragma once

#include "collectives/nccl/fabric.h"
#include "collectives/nccl/rendezvous.h"
#include "collectives/road.h"

namespace driftless::nccl {

// Of the leading publisher rank, with a thread that answers the others.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_leading_sender(const NcclOptions& options,
                                                                    unsigned ranks,
                                                                    std::shared_ptr<Fabric> fabric,
                                                                    std::unique_ptr<Hub> hub);
// Of any other publisher rank.
[[nodiscard]] std::unique_ptr<SendRoad> make_other_sender(const NcclOptions& options, unsigned rank,
                                                          unsigned ranks,
                                                          std::shared_ptr<Fabric> fabric,
                                                          std::unique_ptr<Connector> connector);
// With a thread that follows: it joins the group as soon as there is a leader, and receives what is
// published from then on. One road for each receiver.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(
    const NcclOptions& options, std::shared_ptr<Fabric> fabric,
    std::unique_ptr<Connector> connector);

}  // namespace driftless::nccl
