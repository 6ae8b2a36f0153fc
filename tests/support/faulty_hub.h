// SPDX-License-Identifier: Apache-2.0
// A hub between a leader and its rendezvous that holds some messages back, or drops all of them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/hub/hub.h"
#include "collectives/nccl/message.h"

namespace driftless::testing {

// Set from any thread.
class HubFaults {
 public:
  // Messages of this kind do not reach the leader until release().
  void hold(nccl::MessageKind kind) {
    const std::scoped_lock lock(mutex_);
    held_kind_ = kind;
  }
  // These messages are also held until the leader reads without waiting, as it does when it closes.
  void hold_until_it_closes(nccl::MessageKind kind) {
    const std::scoped_lock lock(mutex_);
    held_kind_ = kind;
    last_look_releases_ = true;
  }
  void release() {
    const std::scoped_lock lock(mutex_);
    held_kind_.reset();
  }
  [[nodiscard]] bool wait_until_one_is_held(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.at(), [&] { return !held_.empty(); });
  }
  // Drops all messages in both directions, as if the leader had died without sending one.
  void fall_silent() {
    const std::scoped_lock lock(mutex_);
    silent_ = true;
  }

 private:
  friend class FaultyHub;
  [[nodiscard]] std::vector<hub::HubEvent> let_through(std::vector<hub::HubEvent> events,
                                                       bool waited) {
    const std::scoped_lock lock(mutex_);
    if (!waited && last_look_releases_) held_kind_.reset();
    if (silent_) return {};
    std::vector<hub::HubEvent> passed;
    if (!held_kind_) passed = std::exchange(held_, {});
    for (hub::HubEvent& event : events) {
      const bool message = event.kind == hub::HubEvent::Kind::kMessage;
      const bool held = message && held_kind_ && is_held(event.text);
      (held ? held_ : passed).push_back(std::move(event));
    }
    changed_.notify_all();
    return passed;
  }
  [[nodiscard]] bool is_held(const std::string& text) const {
    const auto message = nccl::parse_message(text);
    return message.ok() && message->kind == *held_kind_;
  }
  [[nodiscard]] bool silent() {
    const std::scoped_lock lock(mutex_);
    return silent_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<nccl::MessageKind> held_kind_;
  std::vector<hub::HubEvent> held_;
  bool last_look_releases_ = false;
  bool silent_ = false;
};

class FaultyHub final : public hub::Hub {
 public:
  FaultyHub(std::unique_ptr<hub::Hub> hub, std::shared_ptr<HubFaults> faults)
      : hub_(std::move(hub)), faults_(std::move(faults)) {}
  std::vector<hub::HubEvent> poll(const Deadline& deadline) override {
    const bool waits = !deadline.expired();
    return faults_->let_through(hub_->poll(deadline), waits);
  }
  void send(std::uint64_t peer, std::string_view message) override {
    if (!faults_->silent()) hub_->send(peer, message);
  }
  void drop(std::uint64_t peer) override { hub_->drop(peer); }

 private:
  std::unique_ptr<hub::Hub> hub_;
  std::shared_ptr<HubFaults> faults_;
};

}  // namespace driftless::testing
