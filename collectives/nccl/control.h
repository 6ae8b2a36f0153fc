// SPDX-License-Identifier: Apache-2.0
// Control: what the sending side of a publisher rank asks of the leader. On the leader it is
// LeaderControl; on other ranks calls travel over a Link.
#pragma once

#include "collectives/nccl/message.h"
#include "collectives/nccl/rendezvous.h"

namespace driftless::nccl {

// A publication that was begun.
struct Attempt {
  std::uint64_t number = 0;
  std::uint64_t generation = 0;  // of the group that it goes to
  unsigned receivers = 0;        // in that group
};

class Control {
 public:
  virtual ~Control() = default;
  [[nodiscard]] virtual Status announce(std::string_view run_info) = 0;  // leader, like seal()
  [[nodiscard]] virtual Result<Attempt> begin(const PublicationId& id,
                                              const Deadline& deadline) = 0;
  // What this rank has to send: attempt, generation, parts, and the meeting unless the communicator
  // of this generation is there already. Ok: every receiver of the group has been told to receive
  // it.
  [[nodiscard]] virtual Status offer(Message offer, const Deadline& deadline) = 0;
  // Not ok once the attempt cannot be committed any more. Does not wait.
  [[nodiscard]] virtual Status check(std::uint64_t attempt) = 0;
  // This rank could not send.
  virtual void failed(std::uint64_t attempt, const Status& why) = 0;
  [[nodiscard]] virtual Status seal(std::uint64_t attempt, std::string_view manifest,
                                    const Deadline& deadline) = 0;
  virtual void abort(std::uint64_t attempt) = 0;
  [[nodiscard]] virtual Result<std::optional<Hash128>> published(const PublicationId& id,
                                                                 const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::vector<ReceiverReport>> receivers() = 0;
};

// For publisher ranks other than the leader. Connects when it is first used, and again once the
// link was lost.
[[nodiscard]] std::unique_ptr<Control> make_remote_control(std::unique_ptr<Connector> connector,
                                                           unsigned rank, unsigned ranks);

}  // namespace driftless::nccl
