// SPDX-License-Identifier: Apache-2.0
// shared_fs: a road of files on a file system that both sides see. Needs no MPI.
//
//   <dir>/run.json                     the announcement
//   <dir>/weight_v000007/              a version: its parts, manifest.json, DONE (hash of the
//   manifest) <dir>/anchor_v000007/              an anchor, likewise
//   <dir>/.weight_v000007.*.tmp/       one that is being written, under a name that is new each
//   time <dir>/.dropped_*.tmp/              one that is being removed <dir>/.receivers/<id>.json
//   what a receiver last said <dir>/.driftless-publisher.lock    held by the leader; says its
//   session and process
//
// A publication is written into the hidden directory by all ranks, synced, and renamed. What is
// removed is renamed first. So a name without a dot stands for something whole, whatever happens
// to whoever made it. Nobody's clock is compared with anybody else's: whether a receiver is alive
// is told by its file changing.
//
// There is one publisher. A leader whose lock file was removed or replaced, while it was stopped
// for instance, is fenced: its calls fail with kWrongRun, and nothing of it becomes visible any
// more. The next leader first takes the lock and then takes hidden directories out of the way, so
// that the renaming of one that was sealed in that moment fails.
//
// A system call on a file system that stalls cannot be interrupted: deadlines are looked at between
// calls, not within one. Mount such a file system so that its calls end (NFS: "soft" or "timeo").
#pragma once

#include "collectives/shared_fs/part_container.h"
#include "core/finding.h"

namespace driftless {

struct SharedFsOptions {
  std::string dir;
  // Of a receiver: others write the directory, and their version 0 is this checkpoint
  // (plugin/interchange/foreign_directory.h). Empty: Driftless does.
  std::string foreign_base;
  // Commands for /bin/sh: run by every rank once its files of a publication are written, and before
  // it appears; by the leader after it appeared; and by a receiver before it looks. For file
  // systems that must be told to become visible. DRIFTLESS_DIR and, of a publisher,
  // DRIFTLESS_VERSION_DIR are in their environment. A failure or timeout is an error:
  // before_visible ends the publication; what appeared before a failing after_publish stays
  // published.
  std::string before_visible;
  std::string after_publish;
  std::string before_read;
  std::chrono::milliseconds hook_timeout{60'000};
  // Files that hold the parts of a publication at most, if more ranks than that publish and nobody
  // else reads the files: several ranks then write into one (make_part_packs_sink).
  unsigned part_files = 64;
  std::chrono::milliseconds poll_first{5};
  std::chrono::milliseconds poll_longest{1'000};
  std::chrono::milliseconds patience{600'000};  // with a receiver whose file does not change
  std::chrono::milliseconds lock_wait{2'000};   // for the directory of another publisher
};

// The pack of `rank`: neighbours share one. Nothing if every rank may have files of its own.
[[nodiscard]] std::optional<unsigned> pack_of(const SharedFsOptions& options, unsigned rank,
                                              unsigned ranks);

// `ranks` publisher ranks share the directory; each makes its own sender. `sink` holds the parts of
// a publication (null: a file each). kBusy where another publisher holds the directory; the
// leader's sender holds it until it is destroyed. `fs` and what the sink needs outlive the road.
//
// begin() on the leader removes what earlier attempts left and makes the hidden directory; on the
// others it waits until it sees the one directory of that publication. They are therefore called
// after the leader's has returned (SendRoad says so), or they would take a leftover for it.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_shared_fs_sender(
    FileSystem& fs, const SharedFsOptions& options, unsigned rank, unsigned ranks,
    std::unique_ptr<PartSink> sink = nullptr);
// `reader` finds the parts that the publishers' sinks wrote (null: a file each).
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_shared_fs_receiver(
    FileSystem& fs, const SharedFsOptions& options, PartReader reader = nullptr);

// RoadOpener::examine: writes, syncs, renames and locks in a hidden directory of its own, which it
// removes. A directory that others write (foreign_base) is only read. After the deadline nothing
// more is tried.
[[nodiscard]] std::vector<Finding> examine_shared_fs(FileSystem& fs, const SharedFsOptions& options,
                                                     std::uint64_t space_bytes,
                                                     const Deadline& deadline);

struct RoadKind;
struct RoadOpener;
extern const RoadKind kSharedFsKind;
extern const RoadOpener kSharedFsOpener;
extern const RoadOpener kHdf5Opener;  // of the library driftless_hdf5: a file per version

}  // namespace driftless
