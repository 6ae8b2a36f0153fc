// SPDX-License-Identifier: Apache-2.0
// The two sides of the nccl road, over a fabric and a rendezvous. nccl_road.h makes them for NCCL;
// tests make them for other fabrics.
#pragma once

#include "collectives/nccl/fabric.h"
#include "collectives/nccl/nccl_options.h"
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

// What a publisher rank tells its receivers so that they connect: NCCL's unique id, and the version
// of the NCCL that made it. Different versions do not talk to each other; they wait for each other
// until the deadline, without a word. Two come together more easily than it seems: an engine brings
// the NCCL of its torch, a command the system's.
[[nodiscard]] std::string make_meeting(std::string_view unique_id, int version);
// The unique id. kUnsupported where `version`, this process' own, is not the maker's.
[[nodiscard]] Result<std::string_view> read_meeting(std::string_view meeting, int version);

[[nodiscard]] std::string nccl_version_text(int version);  // 22809: "2.28.9"

}  // namespace driftless::nccl
