// SPDX-License-Identifier: Apache-2.0
// A link that tears in a moment of the test's choosing, on the side of the one who follows.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "collectives/hub/hub.h"

namespace driftless::testing {

// Set from any thread.
struct LinkFaults {
  // Nothing is received until sending has failed, which it does from now on: who follows finds out
  // by its own words that the link is lost, with what the leader said last still unread.
  std::atomic<bool> tears = false;
  std::atomic<bool> deaf = false;  // it listens, and hears nothing from now on
  std::atomic<bool> torn = false;  // it has spoken since
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
