// mpi_rma: receivers pull from memory windows of the publisher ranks by passive-target MPI_Get,
// while the publishers go on.
//
// Rank r's window: control | announcement (leader) | ring of steps | anchor. Parts are written into
// the ring; what they overwrite is first taken off the list of what is there, and a receiver looks
// at that list again after it has read, so a torn read is never taken for a whole one; the hash in
// the manifest is the second proof.
#pragma once

#include <mpi.h>

#include <memory>

#include "collectives/group.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/road.h"

namespace driftless {

// Collective over `world`, whose first `publishers` ranks publish; all others receive. Every rank
// calls it once with the same numbers; MPI is initialized, and `world` (duplicated inside) outlives
// nothing. The error of a window that cannot be made says which mpirun flags to use. Destroying it
// is collective, too.
class MpiRmaWorld {
 public:
  [[nodiscard]] static Result<std::unique_ptr<MpiRmaWorld>> create(MPI_Comm world,
                                                                   unsigned publishers,
                                                                   const MpiRmaOptions& options);
  virtual ~MpiRmaWorld() = default;
  [[nodiscard]] virtual bool publishes() const = 0;
  [[nodiscard]] virtual unsigned rank() const = 0;  // among the publishers, or the receivers
  // Whether MPI_THREAD_MULTIPLE was granted. Where not, all roads of a process are used by the
  // thread that initialized MPI, and SendRoad::progress() must be called while it waits.
  [[nodiscard]] virtual bool threads() const = 0;
  // Only on publishers / on receivers. The world outlives them.
  [[nodiscard]] virtual Result<std::unique_ptr<SendRoad>> sender() = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ReceiveRoad>> receiver() = 0;
};

// The publisher ranks' group over their communicator (duplicated inside; collective).
[[nodiscard]] Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers);

}  // namespace driftless
