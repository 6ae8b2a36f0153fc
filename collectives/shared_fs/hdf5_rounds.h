// SPDX-License-Identifier: Apache-2.0
// The rounds in which the publisher ranks write version.h5 together. Internal to the hdf5_*.cpp
// files.
//
// A round: every rank says "a part", "no more" or "failed" (announcement); then every rank says
// "go", or "failed" if it failed since (confirmation). After "go" from all the leader makes the
// datasets and tells every rank where its bytes lie in the file (places), and each writes them
// there: no call within HDF5 or MPI-IO is a meeting. "No more" from all: every rank syncs its
// bytes, then the leader closes the file, and after each they tell whether all went well. Any
// "failed": the leader removes the file, and the attempt is over; nobody writes any more by then.
//
// Announcements name the attempt. Where they differ, a rank is behind: it missed a publication, or
// still has the word in the air that it said for one which it has left. Those whose attempt is not
// the leader's any more drop it, and all say their word again.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>

#include "collectives/mpi_rma/mpi_status.h"
#include "collectives/open_part.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/hdf5_handle.h"

namespace driftless {

// --- hdf5_attempt.cpp: one publication as this rank sees it. It stands between the callers'
// threads, which fill parts, and the rounds, which write them.

struct Hdf5FinishedPart {
  PartReceipt receipt;
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

// --- hdf5_file.cpp: version.h5 while it is written.

// As it travels, between ranks of one build: plain bytes.
struct Hdf5Message {
  enum Kind : std::uint32_t { kPart = 1, kNoMore = 2, kFailed = 3, kGo = 4 };

  std::uint32_t kind = kFailed;
  std::uint32_t code = 0;  // of a failure
  Hash128 attempt;
  std::uint64_t size_bytes = 0;  // of a part, like the following
  Hash128 hash;
  std::array<char, kMaxHdf5PartName + 1> name{};  // ends with a zero
  std::array<char, 512> text{};                   // of a failure; ends with a zero

  void set_failure(const Status& why);
  [[nodiscard]] Status failure(unsigned rank) const;
};

// Of a rank that has no dataset in this round.
inline constexpr std::uint64_t kHdf5Nowhere = ~std::uint64_t{0};

// version.h5 as the leader keeps it: it alone makes groups and datasets, so that what many ranks
// cost is bytes and not tables. A call that fails leaves the file open where it was.
class Hdf5VersionFile {
 public:
  Hdf5VersionFile(unsigned ranks, Hdf5Options options)
      : size_(ranks), options_(std::move(options)) {}

  [[nodiscard]] bool is_open() const { return file_.valid(); }
  // Overwrites what is at `path`.
  [[nodiscard]] Status create(const std::string& path);
  // A dataset for every rank that announced a part, in the order of ranks. Where the bytes of each
  // lie in the file: the ranks write them there, without HDF5.
  [[nodiscard]] Result<std::vector<std::uint64_t>> place(const std::vector<Hdf5Message>& announced);
  // Once all ranks have written and synced their bytes: closed, and synced.
  [[nodiscard]] Status close();
  // Closes a file that is not wanted. `ours`: nothing else lies at its path, and its content is
  // removed first: room for what HDF5 writes even then. Left open if HDF5 cannot write what it must
  // (a close that failed would end the process in H5close()). Nothing where it is not open.
  void discard(bool ours);
  // Left open: MPI is over, or failed.
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

// What the leader's begin() leaves in place of version.h5 until the file is made: the attempt's id.
[[nodiscard]] Status write_hdf5_attempt_id(const std::string& directory, const Hash128& id);
// kIncomplete where it is not there (yet).
[[nodiscard]] Result<Hash128> read_hdf5_attempt_id(const std::string& directory);

// Every rank says a word, and hears everybody's.
// One exchange at a time, without a wait: post(), then test() until it says true. One thread at a
// time. A request that is still under way when it is destroyed is left to MPI, with its buffers:
// MPI cannot take it back.
class Hdf5Exchange {
 public:
  // Duplicates `ranks`; errors of MPI become statuses from here on. Collective.
  [[nodiscard]] static Result<std::unique_ptr<Hdf5Exchange>> create(MPI_Comm ranks);
  ~Hdf5Exchange();

  [[nodiscard]] unsigned rank() const { return own_.rank; }
  [[nodiscard]] unsigned size() const { return own_.size; }

  [[nodiscard]] Status post(const Hdf5Message& mine);
  // The leader's places go to all; what the others give is passed over.
  [[nodiscard]] Status post_places(const std::vector<std::uint64_t>& places);
  [[nodiscard]] Result<bool> test();
  // By rank; valid from test() to the next post().
  [[nodiscard]] const std::vector<Hdf5Message>& heard() const { return buffers_->heard; }
  [[nodiscard]] std::uint64_t my_place() const { return buffers_->places[own_.rank]; }

 private:
  struct Buffers {
    Hdf5Message mine;
    std::vector<Hdf5Message> heard;
    std::vector<std::uint64_t> places;
  };
  explicit Hdf5Exchange(const mpi_rma::OwnComm& own) : own_(own) {}

  mpi_rma::OwnComm own_;
  std::unique_ptr<Buffers> buffers_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// advance() is called by one thread at a time; the others by any.
class Hdf5Rounds {
 public:
  Hdf5Rounds(std::unique_ptr<Hdf5Exchange> exchange, std::shared_ptr<Hdf5Monitor> monitor,
             const Hdf5Options& options);
  ~Hdf5Rounds();

  [[nodiscard]] unsigned rank() const { return exchange_->rank(); }

  // The attempt that is to follow; one that waits already is over, failed. From here on, what lies
  // in its directory is its own: waits until the attempt before writes nothing there.
  [[nodiscard]] Status set_next(std::shared_ptr<Hdf5Attempt> next, const Deadline& deadline);

  enum class Progress : unsigned char {
    kNothing,  // nothing to say until an attempt changes
    kWaiting,  // for the other ranks
    kMoved,
  };
  // Does what can be done without waiting for another rank's word. Not short: it writes.
  [[nodiscard]] Progress advance();
  // Whether advance() would not return kNothing. The caller holds the monitor's lock.
  [[nodiscard]] bool has_work_locked() const;
  // Whether an attempt is being written or waits. The caller holds the monitor's lock.
  [[nodiscard]] bool idle_locked() const { return active_ == nullptr && next_ == nullptr; }

 private:
  enum class Phase : unsigned char {
    kSilent,
    kAnnounced,
    kConfirming,
    kPlacing,
    kFlushed,
    kClosed
  };

  [[nodiscard]] Progress announce();
  [[nodiscard]] Progress on_announced();
  [[nodiscard]] Progress on_misaligned();
  [[nodiscard]] Progress on_confirmed();
  [[nodiscard]] Progress on_placed();
  [[nodiscard]] Progress on_flushed();
  [[nodiscard]] Progress on_closed();
  [[nodiscard]] Progress say(const Status& mine, Phase next);
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
  // The file is made, written or synced until end_writing(). Whether it is still ours: not where
  // the same directory was begun anew.
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
  Phase phase_ = Phase::kSilent;  // of the exchange that is under way
  std::vector<Hdf5Message> announced_;            // by rank, from the last announcement
  std::shared_ptr<const Hdf5FinishedPart> part_;  // mine among them
  // Guarded by the monitor; active_ is changed by advance() only.
  std::shared_ptr<Hdf5Attempt> active_, next_;
  bool writing_ = false;
  Status broken_;  // MPI failed: no round can be held any more
};

}  // namespace driftless
