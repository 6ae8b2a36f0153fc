// SPDX-License-Identifier: Apache-2.0
// The rounds in which the publisher ranks write version.h5 together. Internal to the hdf5_*.cpp
// files.
//
// A round has two exchanges. First every rank sends "a part", "no more" or "failed" (announcement);
// then every rank sends "go", or "failed" if it has failed since (confirmation). What follows
// depends on them:
//   "a part" of some, "go" from all: the leader creates the datasets and sends each rank the place
//     of its bytes in the file (places), and each rank writes them there. No call within HDF5 or
//     MPI-IO is collective.
//   "no more" from all: every rank syncs its bytes, then the leader closes the file; after each of
//     these steps all ranks exchange whether it succeeded.
//   "failed" of any: the leader removes the file, and the attempt is over; no rank writes any more
//     by then.
//
// An announcement names the rank's attempt. Attempts differ if a rank is behind: it missed a
// publication, or it announced an attempt and has left it since. Each rank whose attempt is not the
// leader's drops it, and all ranks announce again.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>

#include "collectives/mpi_rma/mpi_status.h"
#include "collectives/open_part.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/hdf5_handle.h"

namespace driftless {

// --- hdf5_attempt.cpp: one publication on this rank. It connects the callers' threads, which fill
// parts, with the rounds, which write them.

struct Hdf5FinishedPart {
  PartReceipt receipt;
  PartBuffer buffer;
};

// Shared by a sink's threads: one lock for all attempts, so that one condition wakes all of them.
struct Hdf5Monitor {
  std::mutex mutex;
  std::condition_variable changed;
};

// Thread-safe, except for functions with a comment that limits it. Shared by the sink, its rounds
// and the parts' files.
class Hdf5Attempt : public std::enable_shared_from_this<Hdf5Attempt> {
 public:
  struct Limits {
    std::uint64_t part_bytes = 0;
    std::size_t queued_parts = 0;
  };

  // `id` is equal on all ranks, and unique among attempts. `deadline` bounds waits for room.
  Hdf5Attempt(std::shared_ptr<Hdf5Monitor> monitor, std::string directory, Hash128 id,
              unsigned rank, Limits limits, const Deadline& deadline);

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const Hash128& id() const { return id_; }

  // Functions for the callers. create_part() waits while the queue is full.
  [[nodiscard]] Result<std::unique_ptr<File>> create_part(const std::string& name);
  // No more parts follow; kInvalidArgument if a part is open, or was not synced.
  [[nodiscard]] Status start_flush();
  // Whether the attempt has succeeded or failed permanently.
  [[nodiscard]] bool over() const;
  // Waits until it is over, but not past the deadline.
  [[nodiscard]] bool wait_over(const Deadline& deadline) const;
  // The result of the attempt, or the reason for which it will fail.
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::vector<PartReceipt> receipts() const;
  // Makes this rank announce "failed" from now on. The first reason stays; ignored if the attempt
  // is over.
  void fail(const Status& why);

  // Functions for the rounds.
  enum class Word : unsigned char { kNothing, kPart, kNoMore, kFailed };
  [[nodiscard]] Word word() const;
  [[nodiscard]] Word word_locked() const;  // the caller holds the monitor's lock
  // The oldest finished part. It stays in the queue, and counts against its limit, until
  // pop_front().
  [[nodiscard]] std::shared_ptr<const Hdf5FinishedPart> front() const;
  void pop_front();
  void end(const Status& how);

 private:
  friend class Hdf5Part;
  struct Part {
    PartReceipt receipt;
    bool closed = false, synced = false;
  };

  // Called when a part's file is closed; `hash` is set if it was synced after its last write. Does
  // not wait.
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

// --- hdf5_file.cpp: version.h5 while it is written.

// A message between ranks of one build, sent as plain bytes.
struct Hdf5Message {
  enum Kind : std::uint32_t { kPart = 1, kNoMore = 2, kFailed = 3, kGo = 4 };

  std::uint32_t kind = kFailed;
  std::uint32_t code = 0;  // of a failure
  Hash128 attempt;
  std::uint64_t size_bytes = 0;  // of a part, like the members below
  Hash128 hash;
  std::array<char, kMaxHdf5PartName + 1> name{};  // ends with a zero
  std::array<char, 512> text{};                   // of a failure; ends with a zero

  void set_failure(const Status& why);
  [[nodiscard]] Status failure(unsigned rank) const;
};

// The place of a rank that has no dataset in this round.
inline constexpr std::uint64_t kHdf5Nowhere = ~std::uint64_t{0};

// version.h5 on the leader. Only the leader creates groups and datasets; the other ranks write
// only bytes, without HDF5. After a failed call the file stays open.
class Hdf5VersionFile {
 public:
  Hdf5VersionFile(unsigned ranks, Hdf5Options options)
      : size_(ranks), options_(std::move(options)) {}

  [[nodiscard]] bool is_open() const { return file_.valid(); }
  // Overwrites a file at `path`.
  [[nodiscard]] Status create(const std::string& path);
  // Creates a dataset for every rank that announced a part, in the order of ranks. Returns the
  // places of their bytes in the file: the ranks write them there without HDF5.
  [[nodiscard]] Result<std::vector<std::uint64_t>> place(
      const std::vector<Hdf5Message>& announcements);
  // Closes and syncs the file. Call it after all ranks have written and synced their bytes.
  [[nodiscard]] Status close();
  // Closes an unwanted file; does nothing if no file is open. HDF5 writes some bytes when it closes
  // a file. If the file at the path is still this one (`ours`), its content is removed first, to
  // make room for these bytes. If HDF5 cannot write them, the file stays open, because a failed
  // close would end the process in H5close().
  void discard(bool ours);
  // Leaves the file open, because MPI is finalized or failed.
  void leave();

 private:
  [[nodiscard]] Result<Hid> access_properties() const;
  [[nodiscard]] Status create_groups();
  [[nodiscard]] Result<std::uint64_t> create_dataset(unsigned rank, const Hdf5Message& part);

  const unsigned size_;
  const Hdf5Options options_;
  std::string path_;
  Hid file_;
};

// --- hdf5_rounds.cpp

// Until version.h5 is created, the leader's begin() leaves a file in its place, with the attempt's
// id.
[[nodiscard]] Status write_hdf5_attempt_id(const std::string& directory, const Hash128& id);
// kIncomplete if it is not there (yet).
[[nodiscard]] Result<Hash128> read_hdf5_attempt_id(const std::string& directory);

// Every rank sends a message and receives those of all ranks. One exchange at a time, without
// waiting: post(), then test() until it returns true. One thread at a time. A request that is
// unfinished at destruction is left to MPI with its buffers, because MPI cannot cancel it.
class Hdf5Exchange {
 public:
  // Duplicates `ranks`; MPI errors become statuses from then on. Collective.
  [[nodiscard]] static Result<std::unique_ptr<Hdf5Exchange>> create(MPI_Comm ranks);
  ~Hdf5Exchange();

  [[nodiscard]] unsigned rank() const { return comm_.rank; }
  [[nodiscard]] unsigned size() const { return comm_.size; }

  [[nodiscard]] Status post(const Hdf5Message& mine);
  // Sends the leader's places to all ranks; ignores `places` on the other ranks.
  [[nodiscard]] Status post_places(const std::vector<std::uint64_t>& places);
  [[nodiscard]] Result<bool> test();
  // By rank; valid from test() to the next post().
  [[nodiscard]] const std::vector<Hdf5Message>& messages() const { return buffers_->messages; }
  [[nodiscard]] std::uint64_t my_place() const { return buffers_->places[comm_.rank]; }

 private:
  struct Buffers {
    Hdf5Message mine;
    std::vector<Hdf5Message> messages;
    std::vector<std::uint64_t> places;
  };
  explicit Hdf5Exchange(const mpi_rma::DuplicatedComm& comm) : comm_(comm) {}

  mpi_rma::DuplicatedComm comm_;
  std::unique_ptr<Buffers> buffers_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// One thread at a time calls advance(); the other calls are thread-safe.
class Hdf5Rounds {
 public:
  Hdf5Rounds(std::unique_ptr<Hdf5Exchange> exchange, std::shared_ptr<Hdf5Monitor> monitor,
             const Hdf5Options& options);
  ~Hdf5Rounds();

  [[nodiscard]] unsigned rank() const { return exchange_->rank(); }

  // Sets the next attempt; one that is already waiting fails. Waits until the previous attempt no
  // longer writes in the directory, whose content belongs to `next` from then on.
  [[nodiscard]] Status set_next(std::shared_ptr<Hdf5Attempt> next, const Deadline& deadline);

  enum class Progress : unsigned char {
    kNothing,  // nothing to send until an attempt changes
    kWaiting,  // for the other ranks
    kMoved,
  };
  // Does all work that is possible without waiting for another rank's message. May take long: it
  // writes.
  [[nodiscard]] Progress advance();
  // Whether advance() has something to do. The caller holds the monitor's lock.
  [[nodiscard]] bool has_work_locked() const;
  // Whether no attempt is being written or waits. The caller holds the monitor's lock.
  [[nodiscard]] bool idle_locked() const { return active_ == nullptr && next_ == nullptr; }

 private:
  enum class Phase : unsigned char {
    kSilent,
    kAnnouncing,
    kConfirming,
    kPlacing,
    kFlushed,
    kClosed
  };

  [[nodiscard]] Progress announce();
  [[nodiscard]] Progress on_announcements();
  [[nodiscard]] Progress on_misaligned();
  [[nodiscard]] Progress on_confirmed();
  [[nodiscard]] Progress on_placed();
  [[nodiscard]] Progress on_flushed();
  [[nodiscard]] Progress on_closed();
  [[nodiscard]] Progress post_status(const Status& mine, Phase next);
  [[nodiscard]] Progress post(const Hdf5Message& mine, Phase next);
  [[nodiscard]] Progress finish_failed(const Status& why);
  [[nodiscard]] Progress give_up(const Status& why);
  [[nodiscard]] Hdf5Message blank() const;
  [[nodiscard]] Status first_failure() const;
  [[nodiscard]] bool leads() const { return rank() == 0; }
  [[nodiscard]] std::string path() const;
  [[nodiscard]] Result<std::vector<std::uint64_t>> make_datasets();
  [[nodiscard]] Status write_part(std::uint64_t place);
  [[nodiscard]] Status sync_bytes();
  // Marks the file as being created, written or synced until end_writing(). False if the directory
  // was begun again since, so that it no longer belongs to this attempt.
  [[nodiscard]] bool begin_writing();
  void end_writing();
  [[nodiscard]] bool begun_anew_locked() const;
  [[nodiscard]] Status begun_anew() const;
  void end_active(const Status& how);
  void remove_file();

  const std::unique_ptr<Hdf5Exchange> exchange_;
  const std::shared_ptr<Hdf5Monitor> monitor_;
  Hdf5VersionFile file_;          // leader
  std::unique_ptr<File> bytes_;   // the same file, for this rank's bytes; null before the first
  Phase phase_ = Phase::kSilent;  // of the exchange in progress
  std::vector<Hdf5Message> announcements_;        // by rank, from the last announcement
  std::shared_ptr<const Hdf5FinishedPart> part_;  // this rank's part in it
  // Guarded by the monitor; only advance() changes active_.
  std::shared_ptr<Hdf5Attempt> active_, next_;
  bool writing_ = false;
  Status broken_;  // MPI failed: no more rounds are possible
};

}  // namespace driftless
