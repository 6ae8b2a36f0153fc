// SPDX-License-Identifier: Apache-2.0
// A link that breaks on the follower's side, at a moment that the test chooses.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "collectives/hub/hub.h"

namespace driftless::testing {

// Set from any thread.
struct LinkFaults {
  // From now on every send fails, and nothing is received until one has failed. So the follower
  // learns from its own message that the link is lost, while the leader's last message is still
  // unread.
  std::atomic<bool> tears = false;
  std::atomic<bool> deaf = false;  // it waits, and receives nothing from now on
  std::atomic<bool> torn = false;  // it has tried to send since
};

class FaultyLink final : public hub::Link {
 public:
  FaultyLink(std::unique_ptr<hub::Link> link, std::shared_ptr<LinkFaults> faults)
      : link_(std::move(link)), faults_(std::move(faults)) {}
  Status send(std::string_view message, const Deadline& deadline) override {
    if (!faults_->tears) return link_->send(message, deadline);
    faults_->torn = true;
    return error(StatusCode::kIo, "the link is torn");
  }
  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    if (!faults_->tears || faults_->torn) return link_->receive(deadline);
    faults_->deaf = true;
    Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(1));
    backoff.sleep(deadline);
    return std::optional<std::string>();
  }

 private:
  std::unique_ptr<hub::Link> link_;
  std::shared_ptr<LinkFaults> faults_;
};

[[nodiscard]] inline hub::Connector faulty_connector(hub::Connector connector,
                                                     std::shared_ptr<LinkFaults> faults) {
  return [connector = std::move(connector), faults = std::move(faults)](
             const Deadline& deadline) -> Result<std::unique_ptr<hub::Link>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Link> link, connector(deadline));
    return std::unique_ptr<hub::Link>(std::make_unique<FaultyLink>(std::move(link), faults));
  };
}

}  // namespace driftless::testing
