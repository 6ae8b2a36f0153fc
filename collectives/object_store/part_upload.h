// SPDX-License-Identifier: Apache-2.0
// Parts on their way into a store: pieces are sent while others are still being written. A part of
// one piece is one PUT, by sync(); a larger one is an upload in pieces, which appears with
// finish().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/object_store/object_store_road.h"
#include "collectives/object_store/spool.h"
#include "collectives/part_hash.h"
#include "core/file_system.h"

namespace driftless::object_store {

// Threads that send pieces. A task that finds all of them busy waits for one, so that at most
// `streams` pieces are in memory.
class Senders {
 public:
  explicit Senders(unsigned streams);
  ~Senders();
  Senders(const Senders&) = delete;
  Senders& operator=(const Senders&) = delete;
  void start(std::function<void()> task);

 private:
  void work();

  const unsigned streams_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  unsigned busy_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;  // started as they are needed
};

// One part. Shared by the file that writes it, the threads that send it, and the road.
class PartUpload : public std::enable_shared_from_this<PartUpload> {
 public:
  PartUpload(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options,
             Senders& senders, std::string name, std::string key)
      : store_(std::move(store)),
        request_timeout_(options.request_timeout),
        senders_(senders),
        name_(std::move(name)),
        key_(std::move(key)),
        spool_(options.spool_dir, kPieceBytes) {}

  // The File's calls.
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> bytes) const;
  [[nodiscard]] Status sync();
  void close() { open_ = false; }
  [[nodiscard]] std::string path() const { return concat(store_->name(), "/", key_); }

  // The road's: it is closed and synced, and nothing failed.
  [[nodiscard]] Status check_finished() const;
  // Makes it an object.
  [[nodiscard]] Status finish(const Deadline& deadline);
  // Size, hash and name.
  [[nodiscard]] Result<PartReceipt> receipt() const;
  // Nothing more is sent, and nothing of it stays.
  void drop();

 private:
  struct Piece {
    bool sending = false;
    bool sent = false;   // as it is now
    bool again = false;  // written into while it was being sent
  };

  [[nodiscard]] std::uint64_t piece_bytes(std::uint32_t piece) const;
  [[nodiscard]] bool written(std::uint64_t begin, std::uint64_t end) const;
  void note_written(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] Status begin_upload();
  void send_later(std::uint32_t piece);
  void send(std::uint32_t piece);
  [[nodiscard]] Status send_now(std::uint32_t piece);

  const std::shared_ptr<ObjectStore> store_;
  const std::chrono::milliseconds request_timeout_;
  Senders& senders_;
  const std::string name_, key_;
  Spool spool_;
  PartHash hash_;
  std::atomic<bool> open_ = true;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t size_ = 0;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // written: begin to end, disjoint
  std::map<std::uint32_t, Piece> pieces_;
  unsigned under_way_ = 0;
  bool synced_ = false, dropped_ = false;
  Status failure_;
  std::unique_ptr<ObjectStore::Upload> upload_;
};

// What the publisher writes through.
[[nodiscard]] std::unique_ptr<File> make_part_file(std::shared_ptr<PartUpload> part);

}  // namespace driftless::object_store
