// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_rma_road.h"

#include <system_error>

#include "collectives/mpi_rma/medium.h"
#include "collectives/mpi_rma/progress_thread.h"

namespace driftless {

Result<std::unique_ptr<MpiRmaWorld>> MpiRmaWorld::create(MPI_Comm world, unsigned publishers,
                                                         const MpiRmaOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(auto medium, mpi_rma::Medium::create(world, publishers, options));
  // On one node a get is a copy out of shared memory, which needs no help of the target.
  const bool helped =
      options.progress_thread && medium->threads() && medium->publishes() && !medium->one_node();
  std::unique_ptr<MpiRmaWorld> made(new MpiRmaWorld(std::move(medium)));
  try {
    if (helped) made->progress_ = std::make_unique<mpi_rma::ProgressThread>(made->medium_->quiet());
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "mpi_rma: no progress thread: ", failure.what());
  }
  return made;
}

MpiRmaWorld::MpiRmaWorld(std::unique_ptr<mpi_rma::Medium> medium) : medium_(std::move(medium)) {}

MpiRmaWorld::~MpiRmaWorld() = default;

bool MpiRmaWorld::publishes() const { return medium_->publishes(); }

unsigned MpiRmaWorld::rank() const {
  return publishes() ? medium_->rank() : medium_->rank() - medium_->publishers();
}

bool MpiRmaWorld::threads() const { return medium_->threads(); }

Status MpiRmaWorld::check_side(bool right, std::string_view side) const {
  if (right) return {};
  return error(StatusCode::kInvalidArgument, "mpi_rma: rank ", medium_->rank(),
               " of the world is no ", side, ": the first ", medium_->publishers(), " publish");
}

Result<std::unique_ptr<SendRoad>> MpiRmaWorld::sender() {
  DRIFTLESS_RETURN_IF_ERROR(check_side(publishes(), "publisher"));
  // Only the first sender knows the content of the window.
  if (std::exchange(sender_made_, true)) {
    return error(StatusCode::kInvalidArgument, "mpi_rma: the sender was made already");
  }
  return mpi_rma::make_sender(*medium_);
}

Result<std::unique_ptr<ReceiveRoad>> MpiRmaWorld::receiver() {
  DRIFTLESS_RETURN_IF_ERROR(check_side(!publishes(), "receiver"));
  return mpi_rma::make_receiver(*medium_);
}

Status MpiRmaWorld::close() {
  progress_.reset();
  return medium_->close();
}

}  // namespace driftless
