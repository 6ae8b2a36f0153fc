// SPDX-License-Identifier: Apache-2.0
// nccl: publisher ranks broadcast frames from their GPU to the GPUs of all receivers, each rank
// over its own communicator. docs/roads/nccl.md describes the road.
//
// NCCL pushes, but receivers of a road pull. So a receiver has a thread that takes part in every
// broadcast since it joined, acknowledges the received parts with their hashes, and holds the last
// versions in device memory; list() and fetch_part() read from there. The small messages
// (membership, names, sizes, hashes, acknowledgements, manifests) travel over a hub (hub/hub.h) in
// the leading publisher rank.
//
// seal() is ok only when every remaining receiver of the group has acknowledged the version. A peer
// that dies or is late breaks the communicator: it is aborted, the version fails with a status
// within its deadline, and the next version goes to the remaining receivers. A receiver that joins
// late, or again, finds that versions are missing, and requests an anchor as on any other road.
//
// A road consists of a fabric (fabric.h) and a hub; tests have their own fabrics.
#pragma once

#include <condition_variable>
#include <mutex>

#include "collectives/hub/hub.h"
#include "collectives/nccl/fabric.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/road.h"

namespace driftless {

// Makes a fabric of CUDA memory on options.device, and NCCL. One for each process. kUnsupported if
// there is no such GPU. Does not change the current device of other threads.
[[nodiscard]] Result<std::shared_ptr<nccl::Fabric>> make_nccl_fabric(const NcclOptions& options);

namespace nccl {

using hub::Connector;
using hub::Hub;

// The end of the run, shared by the functions of a process' OpenRoad and its sender or receiver. In
// the leading rank, publish() passes the text to the sender's thread. In a rollout, the receiver's
// thread stores the text that the leader sent, and fetch_end() reads it. Thread-safe.
class EndNote {
 public:
  // Stores the text, and waits until the sender's thread calls settle().
  void publish(std::string_view text, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    text_ = text;
    changed_.wait_until(lock, deadline.at(), [&] { return settled_; });
  }
  void store(std::optional<std::string> text) {
    const std::scoped_lock lock(mutex_);
    text_ = std::move(text);
  }
  [[nodiscard]] std::optional<std::string> text() const {
    const std::scoped_lock lock(mutex_);
    return text_;
  }
  // Ends the wait of publish(): all receivers have answered, or the leader has closed.
  void settle() {
    const std::scoped_lock lock(mutex_);
    settled_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> text_;
  bool settled_ = false;
};

// The sender of the leading publisher rank, with a thread that answers the others.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_leading_sender(
    const NcclOptions& options, unsigned ranks, std::shared_ptr<Fabric> fabric,
    std::unique_ptr<Hub> hub, std::shared_ptr<EndNote> end = {});
// The sender of any other publisher rank.
[[nodiscard]] std::unique_ptr<SendRoad> make_other_sender(const NcclOptions& options, unsigned rank,
                                                          unsigned ranks,
                                                          std::shared_ptr<Fabric> fabric,
                                                          Connector connector);
// A receiver with a thread that joins the group as soon as there is a leader, and receives what is
// published from then on. One road for each receiver.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(const NcclOptions& options,
                                                                 std::shared_ptr<Fabric> fabric,
                                                                 Connector connector,
                                                                 std::shared_ptr<EndNote> end = {});

}  // namespace nccl
}  // namespace driftless
