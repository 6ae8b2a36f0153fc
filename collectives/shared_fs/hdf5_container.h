// SPDX-License-Identifier: Apache-2.0
// The parts of a publication in one HDF5 file, into which all publisher ranks write.
//
//   <publication>/version.h5
//     /                      attributes: format "driftless", format_version 1, ranks
//     /rank0000/<part name>  1-D uint8, contiguous, no filter: parts are already encoded.
//                            Attributes: size (uint64), xxh3_128 (32 hexadecimal digits)
//
// h5dump and h5py read it. Parts are buffered in memory: pwrite() fills a part, sync() completes
// it, closing its File queues it, and it is freed once it is written.
#pragma once

#include <mpi.h>

#include "collectives/shared_fs/part_container.h"

namespace driftless {

inline constexpr char kHdf5FileName[] = "version.h5";

struct Hdf5Options {
  std::uint64_t max_part_bytes = std::uint64_t{16} << 30;  // a longer part is refused: kNoSpace
  unsigned queued_parts = 2;  // closed but not yet written; create_part() waits for room
  // Large datasets begin at multiples of this: the stripe size of a parallel file system.
  std::uint64_t alignment_bytes = 4096;
  // Passed to MPI-IO, through which the leader creates the file; for example {"striping_factor",
  // "8"}.
  std::vector<std::pair<std::string, std::string>> mpi_io_hints;
  // Limit for the wait of the destructor until all ranks have ended an unfinished publication.
  std::chrono::milliseconds close_wait{5'000};
};

// Collective over `ranks`: exactly the publisher ranks in their order. MPI must be initialized; the
// communicator is duplicated inside. Destroying the sink is collective, too, and must precede
// MPI_Finalize.
//
// With MPI_THREAD_MULTIPLE a thread of the sink runs rounds with those of the other ranks while the
// callers continue; memory holds queued_parts finished parts and the parts being filled. With less,
// the rounds run within flush() on the caller's thread, and all parts of the rank stay in memory
// until then.
//
// begin() is not collective, but on the other ranks it waits for the file that the leader's begin()
// leaves in the directory; its deadline also bounds the waits of create_part(). flush() is
// collective: ok on all ranks, or an error that names the rank which failed, aborted or was late. A
// rank that gave up takes part until all other ranks have its failure; then the next publication
// begins. No HDF5 call is collective: the leader alone creates the file's tables, and every rank
// writes its own bytes into it. One sink per process at a time.
[[nodiscard]] Result<std::unique_ptr<PartSink>> make_hdf5_sink(MPI_Comm ranks,
                                                               const Hdf5Options& options);

// Reads with plain system calls: needs neither MPI_Init nor other ranks. Returns kIncomplete if
// version.h5 is missing, cannot be opened (yet) or is shorter than it should be, kCorrupt if its
// content differs from the receipt. Thread-safe; fetches take turns.
[[nodiscard]] PartReader make_hdf5_reader();

}  // namespace driftless
