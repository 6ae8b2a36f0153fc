// SPDX-License-Identifier: Apache-2.0
// shared_fs: a road of files on a file system that both sides see. Needs no MPI.
//
//   <dir>/run.json                     the announcement
//   <dir>/closed.json                  the end of the run
//   <dir>/weight_v000007/              a version: its parts, manifest.json, DONE (manifest's hash)
//   <dir>/anchor_v000007/              an anchor, likewise
//   <dir>/.used_v000007                empty; the highest version that may have been visible
//   <dir>/.weight_v000007.*.tmp/       a publication being written; the name is new each time
//   <dir>/.dropped_*.tmp/              a publication being removed
//   <dir>/.run.*.tmp                   the announcement being written
//   <dir>/.doctor.*.tmp/               a test of the directory (examine_shared_fs())
//   <dir>/.receivers/<id>.json         a receiver's last report
//   <dir>/.driftless-publisher.lock    the leader holds it; contains its session and process
//
// All ranks write a publication into the hidden directory, which is then synced and renamed. A
// directory is renamed before it is removed. So a directory without a leading dot always holds a
// whole publication, even if its writer died. The road compares no clocks of different processes:
// a receiver is alive if its file changes.
//
// There is one publisher. A leader whose lock file was removed or replaced (while the leader was
// stopped, for instance) is fenced: its calls fail with kWrongRun, and it can make nothing visible
// any more. The next leader takes the lock first, and then moves hidden directories away, so that
// the renaming of a directory that is being sealed at that moment fails.
//
// A system call on a stalled file system cannot be interrupted: deadlines are checked between
// calls, not during one. Mount such a file system so that its calls end (NFS: "soft" or "timeo").
#pragma once

#include "collectives/shared_fs/part_container.h"
#include "core/finding.h"

namespace driftless {

struct SharedFsOptions {
  std::string dir;
  // For a receiver if other software writes the directory: the checkpoint that is version 0
  // (plugin/interchange/foreign_directory.h). Empty: Driftless writes it.
  std::string foreign_base;
  // Commands for /bin/sh, for file systems that make files visible only on request. Every rank runs
  // before_visible after its files of a publication are written and before it appears; the leader
  // runs after_publish after it appeared; a receiver runs before_read before it looks. Their
  // environment has DRIFTLESS_DIR and, on a publisher, DRIFTLESS_VERSION_DIR. A failure or timeout
  // is an error: before_visible ends the publication; a publication that appeared before a failing
  // after_publish stays published.
  std::string before_visible;
  std::string after_publish;
  std::string before_read;
  std::chrono::milliseconds hook_timeout{60'000};
  // If more ranks than this publish, and no other software reads the files, several ranks write
  // into one file (make_part_packs_sink), so that the parts fill at most this many files.
  unsigned part_files = 64;
  std::chrono::milliseconds poll_first{5};
  std::chrono::milliseconds poll_longest{1'000};
  std::chrono::milliseconds patience{600'000};  // for a receiver whose file does not change
  std::chrono::milliseconds lock_wait{2'000};   // for another publisher to release the directory
};

// The pack of `rank`: neighbouring ranks share one. Empty if every rank may have its own files.
[[nodiscard]] std::optional<unsigned> pack_of(const SharedFsOptions& options, unsigned rank,
                                              unsigned ranks);

// `ranks` publisher ranks share the directory; each makes its own sender. `sink` stores the parts
// of a publication (null: a file for each). kBusy if another publisher holds the directory; the
// leader's sender holds it until it is destroyed. `fs` and everything that the sink needs must
// outlive the road.
//
// begin() on the leader removes the remains of earlier attempts and creates the hidden directory;
// on other ranks it waits until it sees one hidden directory of the publication. It could be a
// leftover, so these ranks must call begin() after the leader's call has returned, as SendRoad
// requires.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_shared_fs_sender(
    FileSystem& fs, const SharedFsOptions& options, unsigned rank, unsigned ranks,
    std::unique_ptr<PartSink> sink = nullptr);
// `reader` reads the parts that the publishers' sinks wrote (null: a file for each).
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_shared_fs_receiver(
    FileSystem& fs, const SharedFsOptions& options, PartReader reader = nullptr);

// Implements RoadOpener::examine: writes, syncs, renames and locks in its own hidden directory,
// which it removes. Only reads a directory that other software writes (foreign_base). Tries nothing
// more after the deadline.
[[nodiscard]] std::vector<Finding> examine_shared_fs(FileSystem& fs, const SharedFsOptions& options,
                                                     std::uint64_t space_bytes,
                                                     const Deadline& deadline);

struct RoadKind;
struct RoadOpener;
extern const RoadKind kSharedFsKind;
extern const RoadOpener kSharedFsOpener;
extern const RoadOpener kHdf5Opener;  // of the library driftless_hdf5: a file per version

}  // namespace driftless
