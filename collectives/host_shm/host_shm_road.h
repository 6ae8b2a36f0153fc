// SPDX-License-Identifier: Apache-2.0
// host_shm: a road between the processes of one user on one host, through shared memory. Needs no
// MPI. One process sends (the agent, or a trainer with one rank); engine workers receive.
//
//   <dir>/driftless-<uid>-<name>/    private to the user: mode 0700, every file in it 0600
//     lock                           the sender holds it while it lives; contains its process id
//     run                            the announcement
//     s000007, a000007               records of a version and of an anchor: manifest, part sizes
//     s000007.<token>.0              a part: one segment each; every attempt has a new token
//     receivers/<id>                 a receiver's last report; the receiver locks it while it lives
//     end                            the end of the run, once it was reported
//
// The sender writes parts first; then the record appears, by link(2). So a publication with a
// record is whole, even if its sender dies. Receivers map the parts read-only, without a copy; a
// mapping survives the removal of its segment. The kernel's file locks show which processes live,
// and no lock is shared by processes that may die holding it: a dead receiver costs nothing and
// blocks nobody, and a starting sender removes the files of a dead one. The road compares no clocks
// of different processes.
//
// The road keeps up to `versions` of the newest versions, and the newest anchor, within
// `size_bytes`; if they do not fit, the oldest versions are removed. Segments that a receiver still
// maps need memory beyond that.
#pragma once

#include "collectives/road.h"

namespace driftless {

struct HostShmOptions {
  std::string name = "driftless";  // letters, digits, '.', '_', '-'; at most 64, no leading dot
  std::string dir = "/dev/shm";    // a file system in memory
  std::uint64_t size_bytes = std::uint64_t{4} << 30;  // limit for all parts held, with the anchor
  unsigned versions = 32;                             // limit for versions held
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // for a living receiver that sends no reports
};
[[nodiscard]] Status check_host_shm(const HostShmOptions& options);

// Makes the only sender of that name; kBusy, naming the process, if another one lives. Removes the
// files of a dead sender and, when destroyed, its own publications.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_host_shm_sender(const HostShmOptions& options);
// May be made before the sender exists, and keeps working when a new sender replaces the old one.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_host_shm_receiver(
    const HostShmOptions& options);

// The end of the run, stored beside the versions. The sender's process reports it; receivers can
// read it even after the sender has gone, until the next sender starts.
[[nodiscard]] Status publish_host_shm_end(const HostShmOptions& options, std::string_view text);
[[nodiscard]] Result<std::optional<std::string>> fetch_host_shm_end(const HostShmOptions& options);

struct RoadKind;
struct RoadOpener;
extern const RoadKind kHostShmKind;
extern const RoadOpener kHostShmOpener;

}  // namespace driftless
