// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_rma_road.h"

#include <system_error>
#include <utility>

#include "collectives/mpi_rma/medium.h"
#include "collectives/mpi_rma/progress_thread.h"

namespace driftless {
namespace {

using mpi_rma::Medium;
using mpi_rma::ProgressThread;

class World final : public MpiRmaWorld {
 public:
  explicit World(std::unique_ptr<Medium> medium) : medium_(std::move(medium)) {}
  [[nodiscard]] Status start_progress() {
    // On one node a get is a copy out of shared memory, which needs no help.
    const bool wanted = medium_->options().progress_thread && medium_->threads() &&
                        medium_->publishes() && !medium_->one_node();
    if (!wanted) return {};
    try {
      progress_ = std::make_unique<ProgressThread>(medium_->quiet());
    } catch (const std::system_error& failure) {
      return error(StatusCode::kIo, "mpi_rma: no progress thread: ", failure.what());
    }
    return {};
  }

  [[nodiscard]] bool publishes() const override { return medium_->publishes(); }
  [[nodiscard]] unsigned rank() const override {
    return publishes() ? medium_->rank() : medium_->rank() - medium_->publishers();
  }
  [[nodiscard]] bool threads() const override { return medium_->threads(); }

  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender() override {
    DRIFTLESS_RETURN_IF_ERROR(check_side(publishes(), "publisher"));
    // What lies in the window is known to the first one alone.
    if (std::exchange(sender_made_, true)) {
      return error(StatusCode::kInvalidArgument, "mpi_rma: the sender was made already");
    }
    return mpi_rma::make_sender(*medium_);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver() override {
    DRIFTLESS_RETURN_IF_ERROR(check_side(!publishes(), "receiver"));
    return mpi_rma::make_receiver(*medium_);
  }
  [[nodiscard]] Status close() override {
    progress_.reset();
    return medium_->close();
  }

 private:
  [[nodiscard]] Status check_side(bool right, std::string_view side) const {
    if (right) return {};
    return error(StatusCode::kInvalidArgument, "mpi_rma: rank ", medium_->rank(),
                 " of the world is no ", side, ": the first ", medium_->publishers(), " publish");
  }

  std::unique_ptr<Medium> medium_;
  std::unique_ptr<ProgressThread> progress_;  // ends first; the medium's farewell lets MPI work
  bool sender_made_ = false;
};

}  // namespace

Result<std::unique_ptr<MpiRmaWorld>> MpiRmaWorld::create(MPI_Comm world, unsigned publishers,
                                                         const MpiRmaOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(auto medium, Medium::create(world, publishers, options));
  auto made = std::make_unique<World>(std::move(medium));
  DRIFTLESS_RETURN_IF_ERROR(made->start_progress());
  return std::unique_ptr<MpiRmaWorld>(std::move(made));
}

}  // namespace driftless
