// SPDX-License-Identifier: Apache-2.0
// The parts of a publication in one HDF5 file, into which all publisher ranks write.
//
//   <publication>/version.h5
//     /                      attributes: format "driftless", format_version 1, ranks
//     /rank0000/<part name>  1-D uint8, contiguous, no filter: parts are encoded already.
//                            Attributes: size (uint64), xxh3_128 (32 hexadecimal digits)
//
// h5dump and h5py read it. Parts wait in memory: a part is collected by pwrite(), final with
// sync(), handed over when its File is closed, and gone from memory once it is written.
#pragma once

#include <mpi.h>

#include "collectives/shared_fs/part_container.h"

namespace driftless {

inline constexpr char kHdf5FileName[] = "version.h5";

struct Hdf5Options {
  std::uint64_t max_part_bytes = std::uint64_t{16} << 30;  // a longer part is refused: kNoSpace
  unsigned queued_parts = 2;  // handed over, not written yet; create_part() waits for room
  // Larger datasets begin at multiples of this: the stripe size of a parallel file system.
  std::uint64_t alignment_bytes = 4096;
  // Passed to MPI-IO, by which the leader makes the file, for example {"striping_factor", "8"}.
  std::vector<std::pair<std::string, std::string>> mpi_io_hints;
  // How long the destructor waits for the other ranks to learn of an unfinished publication.
  std::chrono::milliseconds close_wait{5'000};
};

// Collective over `ranks`: exactly the publisher ranks in their order. MPI is initialized; the
// communicator is duplicated inside. Destroying the sink is collective, too, before MPI_Finalize.
//
// With MPI_THREAD_MULTIPLE a thread of the sink meets those of the other ranks, in rounds, while
// the callers go on: memory is queued_parts finished parts and those that are being filled.
// With less, the rounds run within flush() on the caller's thread, and all parts of the rank wait
// in memory until then.
//
// begin() is no meeting, but on the other ranks it waits for what the leader's begin() left in the
// directory; its deadline also bounds the waits of create_part(). flush() is a meeting: ok on all
// ranks, or an error that names the rank which failed, aborted or was not there in time. A rank
// that gave up goes on taking part until the others know; then the next publication begins. No call
// within HDF5 is a meeting: the leader alone makes the file's tables, and every rank writes its own
// bytes into it. One sink per process at a time.
[[nodiscard]] Result<std::unique_ptr<PartSink>> make_hdf5_sink(MPI_Comm ranks,
                                                               const Hdf5Options& options);

// Reads with plain system calls: needs no MPI_Init, and no other rank. Returns kIncomplete
// where version.h5 is missing, cannot be opened (yet) or is shorter than it should be, kCorrupt
// where it holds something else than the receipt says. Any thread; fetches take turns.
[[nodiscard]] PartReader make_hdf5_reader();

}  // namespace driftless
