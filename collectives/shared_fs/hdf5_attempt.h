// SPDX-License-Identifier: Apache-2.0
// One publication as this rank sees it: what stands between the callers' threads, which fill parts,
// and the rounds, which write them. Internal to the hdf5_*.cpp files.
#pragma once

#include <condition_variable>
#include <deque>

#include "collectives/open_part.h"

namespace driftless {

struct Hdf5FinishedPart {
  std::string name;
  Hash128 hash;
  PartBuffer buffer;
};

// What a sink's threads share: one lock for all attempts, so that one condition wakes everybody.
struct Hdf5Monitor {
  std::mutex mutex;
  std::condition_variable changed;
};

// All calls from any thread, except where a line says otherwise. Shared by the sink, its rounds and
// the parts' files.
class Hdf5Attempt : public std::enable_shared_from_this<Hdf5Attempt> {
 public:
  struct Limits {
    std::uint64_t part_bytes = 0;
    std::size_t queued_parts = 0;
  };

  // `id` is the same on all ranks, and no other attempt's. `deadline` bounds waits for room.
  Hdf5Attempt(std::shared_ptr<Hdf5Monitor> monitor, std::string directory, Hash128 id,
              unsigned rank, Limits limits, const Deadline& deadline);

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const Hash128& id() const { return id_; }

  // For the callers. create_part() waits while the queue is full.
  [[nodiscard]] Result<std::unique_ptr<File>> create_part(const std::string& name);
  // Nothing more comes; kInvalidArgument where a part is open, or was not synced.
  [[nodiscard]] Status start_flush();
  // Ok or failed for good.
  [[nodiscard]] bool over() const;
  // Waits until it is over, but not past the deadline.
  [[nodiscard]] bool wait_over(const Deadline& deadline) const;
  // How it ended, or why it will fail.
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::vector<PartReceipt> receipts() const;
  // From here on this rank says that it failed. The first reason stays; ok where it is over.
  void fail(const Status& why);

  // For the rounds.
  enum class Word : unsigned char { kNothing, kPart, kNoMore, kFailed };
  [[nodiscard]] Word word() const;
  [[nodiscard]] Word word_locked() const;  // where the caller holds the monitor's lock
  // The oldest finished part; stays in the queue, and counts against its bound, until it is popped.
  [[nodiscard]] std::shared_ptr<const Hdf5FinishedPart> front() const;
  void pop_front();
  void end(const Status& how);

 private:
  friend class Hdf5Part;
  struct Part {
    PartReceipt receipt;
    bool closed = false, synced = false;
  };

  // A part's file is closed; `hash` is there where it was synced after its last write. Does not
  // wait.
  void close_part(std::size_t index, PartBuffer buffer, const std::optional<Hash128>& hash);
  [[nodiscard]] Status wait_for_room(std::unique_lock<std::mutex>& lock, const std::string& path);

  const std::shared_ptr<Hdf5Monitor> monitor_;
  const std::string directory_;
  const Hash128 id_;
  const unsigned rank_;
  const Limits limits_;
  const Deadline deadline_;
  // Guarded by the monitor.
  std::vector<Part> parts_;  // in the order of creation
  std::deque<std::shared_ptr<const Hdf5FinishedPart>> queue_;
  bool flushing_ = false, over_ = false;
  Status failure_;
};

}  // namespace driftless
