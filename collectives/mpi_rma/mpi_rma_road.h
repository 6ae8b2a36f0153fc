// SPDX-License-Identifier: Apache-2.0
// mpi_rma: receivers pull from memory windows of the publisher ranks by passive-target MPI_Get,
// while the publishers go on. docs/roads/mpi_rma.md tells the whole story.
//
// Rank r's window: control | records, receivers, announcement (leader) | ring of versions | anchor.
// Parts are written into the ring; what they overwrite is first taken off the list of what is
// there, and a receiver looks at that list again after it has read, so a torn read is never taken
// for a whole one; the hash in the manifest is the second proof.
//
// Threads. MPI_THREAD_MULTIPLE is asked for by who initializes MPI. If it was granted, a
// publisher has a progress thread if not all ranks share a host: without RDMA a get waits until its
// target enters MPI. If it was not granted there is no thread, all roads of a process are used
// by the thread that initialized MPI, and SendRoad::progress() is to be called now and then (parts
// may be written by any thread in either case). On one host gets are copies out of shared memory,
// which need nobody's help.
//
// A process that dies takes the job with it, unless mpirun has --enable-recovery; the others then
// go on, and each call that needs the dead one ends with its deadline.
#pragma once

#include <mpi.h>

#include <functional>

#include "collectives/group.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/road.h"

namespace driftless {
namespace mpi_rma {
class Medium;
class ProgressThread;
}  // namespace mpi_rma

// Collective over `world`, whose first `publishers` ranks publish; all others receive. Every rank
// calls it once with the same numbers; MPI is initialized, and `world` (duplicated inside) outlives
// nothing. All ranks get a world or all get an error; that of a window that cannot be made says
// which mpirun flags to use. Destroying it is collective, too.
class MpiRmaWorld {
 public:
  [[nodiscard]] static Result<std::unique_ptr<MpiRmaWorld>> create(MPI_Comm world,
                                                                   unsigned publishers,
                                                                   const MpiRmaOptions& options);
  ~MpiRmaWorld();
  [[nodiscard]] bool publishes() const;
  [[nodiscard]] unsigned rank() const;  // among the publishers, or the receivers
  // Whether MPI_THREAD_MULTIPLE was granted. If not, all roads of a process are used by the
  // thread that initialized MPI, and SendRoad::progress() must be called while it waits.
  [[nodiscard]] bool threads() const;
  // Only on publishers, once / on receivers, one at a time. The world outlives them.
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender();
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver();
  // Collective, once its roads are gone; the destructor does it otherwise. Waits at most 20 seconds
  // for the others. kDeadlineExceeded if one did not come: windows and communicators are then
  // left to the end of the process, which should end without MPI_Finalize, as that may hang.
  [[nodiscard]] Status close();

 private:
  explicit MpiRmaWorld(std::unique_ptr<mpi_rma::Medium> medium);
  [[nodiscard]] Status check_side(bool right, std::string_view side) const;

  std::unique_ptr<mpi_rma::Medium> medium_;
  std::unique_ptr<mpi_rma::ProgressThread>
      progress_;  // ends first; the medium's farewell lets MPI work
  bool sender_made_ = false;
};

// How a rank is called in messages: "publisher rank 3".
using RankName = std::function<std::string(unsigned rank)>;
// The publisher ranks' group over their communicator (duplicated inside; collective). `name` for a
// group of others.
[[nodiscard]] Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers,
                                                            RankName name = {});

}  // namespace driftless
