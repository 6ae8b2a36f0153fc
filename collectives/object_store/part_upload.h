// SPDX-License-Identifier: Apache-2.0
// Uploads parts. Pieces of a large part are sent while others are still being written; sync() sends
// a part of one piece. flush() waits for all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "collectives/object_store/object_store_road.h"
#include "collectives/object_store/spool.h"
#include "collectives/part_hash.h"

namespace driftless::object_store {

// Threads that send pieces. start() waits while `streams` pieces are in transfer, so that no more
// are in memory.
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
  std::condition_variable changed_, taken_;
  std::deque<std::function<void()>> waiting_;
  unsigned busy_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;  // started when needed
};

// One part. The file that writes it, the threads that send it, and the road share it.
class PartUpload : public std::enable_shared_from_this<PartUpload> {
 public:
  // Requests end with `deadline`.
  PartUpload(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options,
             Senders& senders, std::string name, std::string key, const Deadline& deadline)
      : store_(std::move(store)),
        deadline_(deadline),
        senders_(senders),
        name_(std::move(name)),
        key_(std::move(key)),
        spool_(options.spool_dir, kPieceBytes) {}

  // Calls of the File.
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> bytes) const;
  [[nodiscard]] Status sync();
  void close();
  [[nodiscard]] std::string path() const { return concat(store_->name(), "/", key_); }

  // Calls of the road. check_finished(): ok if the part is closed and synced, and nothing failed so
  // far.
  [[nodiscard]] Status check_finished() const;
  // Makes the part an object; the receipt has its size, hash and name.
  [[nodiscard]] Result<PartReceipt> finish(const Deadline& deadline);
  // Stops sending, and removes everything that was uploaded.
  void drop();

 private:
  struct Piece {
    bool sending = false;
    bool sent = false;   // its current content was sent
    bool again = false;  // written to while or after it was sent
  };

  [[nodiscard]] bool whole(std::uint32_t piece) const;
  void note_written(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::vector<std::uint32_t> unsent();
  void start(const std::vector<std::uint32_t>& pieces);
  void send(std::uint32_t piece);
  [[nodiscard]] Status send_now(std::uint32_t piece);
  [[nodiscard]] Status begin_upload();
  [[nodiscard]] Status wait_until_sent(const Deadline& deadline);
  [[nodiscard]] Status complete(std::uint64_t size, const Deadline& deadline);
  [[nodiscard]] Result<Hash128> hash() const;
  void release_if_sent();

  const std::shared_ptr<ObjectStore> store_;
  const Deadline deadline_;
  Senders& senders_;
  const std::string name_, key_;
  Spool spool_;
  PartHash hash_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t size_ = 0;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // written ranges: begin to end, disjoint
  std::map<std::uint32_t, Piece> pieces_;
  unsigned under_way_ = 0;
  bool open_ = true, synced_ = false, dropped_ = false;
  Status failure_;
  std::unique_ptr<ObjectStore::Upload> upload_;  // for parts of more than one piece
};

// The file that the publisher writes.
[[nodiscard]] std::unique_ptr<File> make_part_file(std::shared_ptr<PartUpload> part);

}  // namespace driftless::object_store
