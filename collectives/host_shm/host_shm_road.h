// SPDX-License-Identifier: Apache-2.0
// host_shm: a road between the processes of one user on one host, through shared memory. Needs no
// MPI. One process sends (the agent, or a trainer of one rank); engine workers receive.
//
//   <dir>/driftless-<uid>-<name>/    private to the user: 0700, and every file in it 0600
//     lock                           held by the sender as long as it lives; says its process id
//     run                            the announcement
//     s000007, a000007               records: a version, an anchor; manifest, sizes of the parts
//     s000007.<token>.0              its parts, one segment each; the token is new for each attempt
//     receivers/<id>                 what a receiver last said; locked by it as long as it lives
//     end                            the last word of the run, if there was one
//
// Parts are written first, the record appears by a rename: what has a record is whole, whatever
// happens to whoever made it. Receivers map the parts read-only, without a copy; a mapping lives on
// when its segment is removed. The kernel's file locks tell who is alive, and no lock is shared by
// two processes that both may die holding it: a dead receiver costs nothing and blocks nobody, and
// a sender that starts removes what a dead one left. No clock is compared with another process'.
//
// The road keeps up to `versions` of the newest versions and the newest anchor within `size_bytes`;
// if that is full, the oldest versions go. Segments that a receiver still has mapped come on top.
#pragma once

#include "collectives/road.h"

namespace driftless {

struct HostShmOptions {
  std::string name = "driftless";  // letters, digits, '.', '_', '-'; at most 64, no leading dot
  std::string dir = "/dev/shm";    // where memory is a file system
  std::uint64_t size_bytes = std::uint64_t{4} << 30;  // of all parts held: versions and anchor
  unsigned versions = 32;                             // held at most
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // with a receiver that lives, but is silent
};
[[nodiscard]] Status check_host_shm(const HostShmOptions& options);

// The only sender of that name; kBusy, naming the process, where another lives. Removes what a dead
// one left, and, when destroyed, what it published itself.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_host_shm_sender(const HostShmOptions& options);
// May be made before there is a sender, and stays when one is replaced by the next.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_host_shm_receiver(
    const HostShmOptions& options);

// The run's last word, beside the road: [sender's process] says it; whoever receives hears it, also
// after the sender has gone, until the next one starts.
[[nodiscard]] Status tell_host_shm_end(const HostShmOptions& options, std::string_view text);
[[nodiscard]] Result<std::optional<std::string>> hear_host_shm_end(const HostShmOptions& options);

struct RoadKind;
struct RoadOpener;
extern const RoadKind kHostShmKind;
extern const RoadOpener kHostShmOpener;

}  // namespace driftless
