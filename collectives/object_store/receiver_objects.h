// SPDX-License-Identifier: Apache-2.0
// The leader's view of receivers/<id>.json. A receiver is alive if its object changed within the
// patience, by the leader's own clock. One thread.
#pragma once

#include <map>
#include <set>

#include "collectives/object_store/medium.h"
#include "collectives/shared_fs/receiver_file.h"

namespace driftless::object_store {

class ReceiverObjects {
 public:
  ReceiverObjects(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options)
      : store_(std::move(store)), patience_(options.patience), streams_(options.streams) {}

  // Reads all objects; returns the receivers that are alive.
  [[nodiscard]] Result<std::vector<shared_fs::ReceiverWatch::Receiver>> look(
      const Deadline& deadline);
  // The ids of receivers that removed their objects since the first look().
  [[nodiscard]] std::vector<std::string> left() const { return {left_.begin(), left_.end()}; }
  // Removes the objects of receivers of an earlier run.
  [[nodiscard]] Status clear(const Deadline& deadline);

 private:
  struct Seen {
    Hash128 content;
    Deadline::Clock::time_point at;
  };
  const std::shared_ptr<ObjectStore> store_;
  const std::chrono::milliseconds patience_;
  const unsigned streams_;
  std::map<std::string, Seen> seen_;  // by key
  std::set<std::string> left_;
};

[[nodiscard]] std::string receiver_key(std::string_view id);

}  // namespace driftless::object_store
