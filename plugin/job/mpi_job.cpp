// SPDX-License-Identifier: Apache-2.0
// A process that an MPI launcher started, or whose road needs MPI.
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "plugin/job/mpi_process.h"
#include "plugin/job/road_openers.h"

namespace driftless {
namespace {

constexpr std::chrono::seconds kCloseGrace{30};

// FNV-1a: the same number for the same text in every process.
std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0xcbf29ce484222325;
  for (const char c : text) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return number;
}

class MpiJobProcess final : public RoadProcess {
 public:
  MpiJobProcess(const Config& config, const Road& road, JobRole role,
                std::unique_ptr<MpiProcess> process, LateHandler late)
      : RoadProcess(config, road, role), process_(std::move(process)), late_(std::move(late)) {}

  [[nodiscard]] unsigned rank() const override { return process_->rank(); }
  [[nodiscard]] unsigned trainers() const override { return process_->trainers(); }
  [[nodiscard]] unsigned rollouts() const override { return process_->rollouts(); }
  [[nodiscard]] Result<std::unique_ptr<Group>> group() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    const Watchdog watchdog(connect(), late_text("meeting the other trainers"), late_);
    return make_mpi_group(process_->role());
  }
  [[nodiscard]] Status tell_end(std::string_view text, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    if (together()) DRIFTLESS_RETURN_IF_ERROR(process_->tell_end(text, deadline));
    return RoadProcess::tell_end(text, deadline);
  }
  [[nodiscard]] Result<std::optional<std::string>> hear_end() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return together() ? process_->hear_end() : RoadProcess::hear_end();
  }
  [[nodiscard]] Status close(const Deadline& deadline) override {
    if (role_ == JobRole::kBystander) return process_->finish(deadline);
    DRIFTLESS_ASSIGN_OR_RETURN(
        [[maybe_unused]] const MpiProcess::Numbers met,
        process_->largest({}, "waiting for all processes of the job to end", deadline));
    // What waits for others there has deadlines of its own, which come first.
    const Watchdog watchdog(Deadline::after(config_.connect_deadline + kCloseGrace),
                            late_text("freeing windows and MPI_Finalize"), late_);
    if (open_.close) DRIFTLESS_RETURN_IF_ERROR(open_.close());
    open_ = {};
    return process_->finish(deadline);
  }
  [[noreturn]] void abandon(int exit_code) override { MpiProcess::abandon(exit_code); }

 private:
  // All processes have read their configuration, and mean the same road.
  [[nodiscard]] Result<RoadPlace> meet(std::uint64_t anchor_bytes,
                                       const Deadline& deadline) override {
    const std::string_view layout = to_string(config_.publisher.layout);
    const std::uint64_t mine = number_of(concat(road_.name, " ", layout));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const MpiProcess::Numbers agreed,
        process_->largest({mine, ~mine, anchor_bytes, 0},
                          concat("deadlines.connect: ", to_string(role_), " ", rank(),
                                 " waiting for all processes of the job"),
                          deadline));
    if (agreed[0] == mine && ~agreed[1] == mine) {
      return RoadPlace{role_, rank(), trainers(), rollouts(), agreed[2], process_.get()};
    }
    return error(StatusCode::kInvalidArgument,
                 "road.kind or road.layout differ between the processes of the job: this one (",
                 to_string(role_), " ", rank(), ") has ", config_.road, " with ", layout);
  }
  [[nodiscard]] std::unique_ptr<Watchdog> watch() const override {
    return std::make_unique<Watchdog>(connect(), late_text(concat("making ", config_.road)), late_);
  }

  [[nodiscard]] Deadline connect() const { return Deadline::after(config_.connect_deadline); }
  [[nodiscard]] std::string late_text(std::string_view what) const {
    return concat("deadlines.connect: ", to_string(role_), " ", rank(), " within MPI, ", what);
  }

  std::unique_ptr<MpiProcess> process_;
  LateHandler late_;
};

}  // namespace

Result<std::unique_ptr<JobProcess>> join_mpi_job(const Config& config, const Road& road,
                                                 JobRole role, const LateHandler& late) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<MpiProcess> process,
      MpiProcess::start(role, Deadline::after(config.connect_deadline), late));
  const bool with_rollouts = road.needs_mpi != nullptr && road.needs_mpi(config, JobRole::kRollout);
  if (with_rollouts && process->trainers() == 0) {
    return error(StatusCode::kInvalidArgument, "road.kind: ", config.road,
                 " needs trainers in the same job: mpirun -n 1 driftless trainer "
                 "... : -n 1 driftless rollout ...");
  }
  return std::unique_ptr<JobProcess>(
      std::make_unique<MpiJobProcess>(config, road, role, std::move(process), late));
}

}  // namespace driftless
