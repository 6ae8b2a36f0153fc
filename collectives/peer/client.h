// SPDX-License-Identifier: Apache-2.0
// Client: sends requests to the leading trainer rank over the hub. It connects when first used, and
// again if the link was lost. Thread-safe; one request at a time.
#pragma once

#include <atomic>
#include <mutex>

#include "collectives/peer/message.h"

namespace driftless::peer {

class Client {
 public:
  // `hello` is sent first over every link. Messages name `leader`.
  Client(hub::Connector connector, Request hello, std::string leader)
      : connector_(std::move(connector)), hello_(std::move(hello)), leader_(std::move(leader)) {}

  // Returns the reply, or the status that the leader replied. If the link is lost, sends the
  // request again over a new one. kIo, at once, if the leader has closed and no new leader listens.
  // kDeadlineExceeded names the leader.
  [[nodiscard]] Result<Reply> ask(Request request, const Deadline& deadline);
  // Whether the leader has closed and no new one was found since.
  [[nodiscard]] bool closed() const { return closed_; }
  // Whether the leader did not answer the last request.
  [[nodiscard]] bool silent() const { return silent_; }
  // Whether that was less than a second ago. Each request to a stopped leader leaves a connection
  // in its queue, so requests that can wait are not made then.
  [[nodiscard]] bool rests();

 private:
  [[nodiscard]] Status connect(const Deadline& deadline);
  [[nodiscard]] Result<Reply> ask_once(const Request& request, const Deadline& deadline);

  const hub::Connector connector_;
  const Request hello_;
  const std::string leader_;
  std::mutex mutex_;
  std::unique_ptr<hub::Link> link_;
  std::uint64_t asked_ = 0;
  Deadline rest_ = Deadline::after(std::chrono::milliseconds(0));
  std::atomic<bool> closed_ = false, silent_ = false;
};

}  // namespace driftless::peer
