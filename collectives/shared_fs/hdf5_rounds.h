// SPDX-License-Identifier: Apache-2.0
// The rounds in which the publisher ranks write version.h5 together. Internal to the hdf5_*.cpp
// files.
//
// A round: every rank says "a part", "no more" or "failed" (announcement); then every rank says
// "go", or "failed" if it failed since (confirmation); only after "go" from all does anybody make a
// collective call. So a rank that gives up between the two stops the others instead of leaving them
// alone within HDF5. "No more" from all: the file is flushed, then closed, and after each they tell
// whether all went well. Any "failed": the leader removes the file, and the attempt is over.
//
// Announcements name the attempt. Where they differ, a rank is behind: it missed a publication, or
// still has the word in the air that it said for one which it has left. Those whose attempt is not
// the leader's any more drop it, and all say their word again.
#pragma once

#include "collectives/mpi_rma/mpi_status.h"
#include "collectives/shared_fs/hdf5_attempt.h"
#include "collectives/shared_fs/hdf5_file.h"

namespace driftless {

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

  [[nodiscard]] MPI_Comm comm() const { return own_.comm; }
  [[nodiscard]] unsigned rank() const { return own_.rank; }
  [[nodiscard]] unsigned size() const { return own_.size; }

  [[nodiscard]] Status post(const Hdf5Message& mine);
  [[nodiscard]] Result<bool> test();
  // By rank; valid from test() to the next post().
  [[nodiscard]] const std::vector<Hdf5Message>& heard() const { return buffers_->heard; }

 private:
  struct Buffers {
    Hdf5Message mine;
    std::vector<Hdf5Message> heard;
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

  // The attempt that is to follow; one that waits already is over, failed.
  void set_next(std::shared_ptr<Hdf5Attempt> next);

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
  // Whether advance() is within HDF5. The caller holds the monitor's lock.
  [[nodiscard]] bool writing_locked() const { return writing_; }

 private:
  enum class Phase : unsigned char { kSilent, kAnnounced, kConfirming, kFlushed, kClosed };

  [[nodiscard]] Progress announce();
  [[nodiscard]] Progress on_announced();
  [[nodiscard]] Progress on_misaligned();
  [[nodiscard]] Progress on_confirmed();
  [[nodiscard]] Progress on_flushed();
  [[nodiscard]] Progress on_closed();
  [[nodiscard]] Progress say(const Status& mine, Phase next);
  [[nodiscard]] Progress post(const Hdf5Message& mine, Phase next);
  [[nodiscard]] Progress finish_failed(const Status& why);
  [[nodiscard]] Progress give_up(const Status& why);
  [[nodiscard]] Hdf5Message blank() const;
  [[nodiscard]] Status first_failure() const;
  [[nodiscard]] bool everybody_has_file() const;
  void set_writing(bool writing);
  void end_active(const Status& how);
  void remove_file();

  const std::unique_ptr<Hdf5Exchange> exchange_;
  const std::shared_ptr<Hdf5Monitor> monitor_;
  Hdf5VersionFile file_;
  Phase phase_ = Phase::kSilent;                  // of the exchange that is under way
  std::vector<Hdf5Message> announced_;            // by rank, from the last announcement
  std::shared_ptr<const Hdf5FinishedPart> part_;  // mine among them
  // Guarded by the monitor; active_ is changed by advance() only.
  std::shared_ptr<Hdf5Attempt> active_, next_;
  bool writing_ = false;
  Status broken_;  // MPI failed: no round can be held any more
};

}  // namespace driftless
