// SPDX-License-Identifier: Apache-2.0
// A hub and a link that pass on every message, and call the test before a message is sent and after
// one was received: the test may end or stop the process there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/hub/hub.h"

namespace driftless::testing {

struct MessageWatch {
  std::function<void(std::string_view message)> before_sending, received;
};

class WatchedLink final : public hub::Link {
 public:
  WatchedLink(std::unique_ptr<hub::Link> link, MessageWatch watch)
      : link_(std::move(link)), watch_(std::move(watch)) {}
  Status send(std::string_view message, const Deadline& deadline) override {
    watch_.before_sending(message);
    return link_->send(message, deadline);
  }
  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    Result<std::optional<std::string>> message = link_->receive(deadline);
    if (message.ok() && message->has_value()) watch_.received(**message);
    return message;
  }

 private:
  const std::unique_ptr<hub::Link> link_;
  const MessageWatch watch_;
};

class WatchedHub final : public hub::Hub {
 public:
  WatchedHub(std::unique_ptr<hub::Hub> hub, MessageWatch watch)
      : hub_(std::move(hub)), watch_(std::move(watch)) {}
  std::vector<hub::HubEvent> poll(const Deadline& deadline) override {
    std::vector<hub::HubEvent> events = hub_->poll(deadline);
    for (const hub::HubEvent& event : events) {
      if (event.kind == hub::HubEvent::Kind::kMessage) watch_.received(event.text);
    }
    return events;
  }
  void send(std::uint64_t peer, std::string_view message) override {
    watch_.before_sending(message);
    hub_->send(peer, message);
  }
  void drop(std::uint64_t peer) override { hub_->drop(peer); }
  void finish(std::uint64_t peer) override { hub_->finish(peer); }

 private:
  const std::unique_ptr<hub::Hub> hub_;
  const MessageWatch watch_;
};

// Of links that `connect` makes.
[[nodiscard]] inline hub::Connector watched(hub::Connector connect, MessageWatch watch) {
  return [connect = std::move(connect), watch = std::move(watch)](
             const Deadline& deadline) -> Result<std::unique_ptr<hub::Link>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Link> link, connect(deadline));
    return std::unique_ptr<hub::Link>(std::make_unique<WatchedLink>(std::move(link), watch));
  };
}

}  // namespace driftless::testing
