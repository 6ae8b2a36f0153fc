// SPDX-License-Identifier: Apache-2.0
// mpi_rma: receivers read from memory windows of the publisher ranks by passive-target MPI_Get,
// while the publishers continue. docs/roads/mpi_rma.md describes the road.
//
// Rank r's window: control | records, receivers, announcement (leader) | ring of versions | anchor.
// The publisher writes parts into the ring. Before it overwrites older parts, it removes their
// version from the list of held versions, and a receiver reads that list again after each read, so
// it never takes a torn read for a whole one. The hash in the manifest is the second proof.
//
// Threads. The code that initializes MPI requests MPI_THREAD_MULTIPLE. If it was granted, and not
// all ranks share a host, a publisher has a progress thread: without RDMA a get waits until its
// target enters MPI. If it was not granted, there is no such thread, only the thread that
// initialized MPI may use the roads of a process, and SendRoad::progress() must be called now and
// then (any thread may write parts in either case). On one host gets are copies out of shared
// memory, which need no help of the target.
//
// A process that dies takes the job with it, unless mpirun has --enable-recovery. Then the others
// continue, and each call that needs the dead process ends with its deadline.
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

// The road's state in a process. create() is collective over `world`, whose first `publishers`
// ranks publish; all others receive. Every rank calls it once with the same numbers. MPI must be
// initialized; `world` is duplicated, and may be freed afterwards. Either all ranks get a world or
// all get an error; if a window cannot be made, the error names the mpirun flags to use.
// Destruction is collective, too.
class MpiRmaWorld {
 public:
  [[nodiscard]] static Result<std::unique_ptr<MpiRmaWorld>> create(MPI_Comm world,
                                                                   unsigned publishers,
                                                                   const MpiRmaOptions& options);
  ~MpiRmaWorld();
  [[nodiscard]] bool publishes() const;
  [[nodiscard]] unsigned rank() const;  // among the publishers or among the receivers
  // Whether MPI_THREAD_MULTIPLE was granted. If not, only the thread that initialized MPI may use
  // the roads of a process, and it must call SendRoad::progress() now and then.
  [[nodiscard]] bool threads() const;
  // sender(): on publishers, once. receiver(): on receivers, one at a time. The world must outlive
  // both.
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender();
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver();
  // Collective, after its roads are destroyed; the destructor calls it otherwise. Waits at most 20
  // seconds for the other ranks. kDeadlineExceeded if one did not call it: windows and
  // communicators are then kept until the process ends, and the process should end without
  // MPI_Finalize, which may hang.
  [[nodiscard]] Status close();

 private:
  explicit MpiRmaWorld(std::unique_ptr<mpi_rma::Medium> medium);
  [[nodiscard]] Status check_side(bool right, std::string_view side) const;

  std::unique_ptr<mpi_rma::Medium> medium_;
  std::unique_ptr<mpi_rma::ProgressThread>
      progress_;  // destroyed first; MPI still progresses in the medium's last barrier
  bool sender_made_ = false;
};

// The name of a rank in messages: "publisher rank 3".
using RankName = std::function<std::string(unsigned rank)>;
// Makes the group of the publisher ranks over their communicator (duplicated inside; collective).
// Groups of other ranks pass a `name`.
[[nodiscard]] Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers,
                                                            RankName name = {});

}  // namespace driftless
