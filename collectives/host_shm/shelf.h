// SPDX-License-Identifier: Apache-2.0
// The publications that the sender of the host_shm road holds, and the room that they take. Any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/host_shm/medium.h"

namespace driftless::host_shm {

class Shelf {
 public:
  Shelf(const HostShmOptions& options, std::shared_ptr<const Directory> directory,
        std::shared_ptr<const SenderLock> lock)
      : size_bytes_(options.size_bytes),
        versions_(options.versions),
        directory_(std::move(directory)),
        lock_(std::move(lock)) {}

  // kAlreadyExists, or kInvalidArgument where a newer one of its kind is there.
  [[nodiscard]] Status check_new(const PublicationId& id) const;
  // The hash of its manifest, if it is held.
  [[nodiscard]] std::optional<Hash128> manifest(const PublicationId& id) const;

  // `id` is being written from now on; what was begun before and not put is given up.
  void begin(const PublicationId& id);
  // Room for so many more of its bytes, made by removing the oldest steps and, for an anchor, the
  // one before. kNoSpace, saying what to raise.
  [[nodiscard]] Status take_room(std::uint64_t bytes);
  // Its record is there: it is held, and what has to go for it goes.
  void put(const Hash128& manifest, std::vector<std::string> segments);
  void give_up();
  // All of it.
  void clear();

 private:
  struct Held {
    Hash128 manifest;
    std::vector<std::string> segments;
    std::uint64_t bytes = 0;
  };
  using Publications = std::map<PublicationId, Held>;
  // With the mutex held.
  [[nodiscard]] bool drop_one();
  void drop(Publications::iterator at);
  [[nodiscard]] Publications::iterator oldest(PublicationKind kind);
  [[nodiscard]] std::size_t count(PublicationKind kind) const;

  const std::uint64_t size_bytes_;
  const unsigned versions_;
  std::shared_ptr<const Directory> directory_;
  std::shared_ptr<const SenderLock> lock_;  // who does not hold it removes nothing by name
  mutable std::mutex mutex_;
  Publications publications_;
  std::uint64_t used_bytes_ = 0;     // of all of them
  PublicationId pending_;            // being written
  std::uint64_t pending_bytes_ = 0;  // of it
};

}  // namespace driftless::host_shm
