#include "plugin/roads.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "collectives/loopback/loopback_road.h"
#include "collectives/shared_fs/shared_fs_road.h"
#if DRIFTLESS_HAS_MPI
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "plugin/mpi_process.h"
#endif
#if DRIFTLESS_HAS_HDF5
#include "collectives/shared_fs/hdf5_container.h"
#endif

namespace driftless {
namespace {

constexpr std::array kBackends = {
    Backend{"loopback", "road inside one process: tests and measurements", true, ""},
    Backend{"shared_fs", "road of files: flush, hf_delta, frames", true, ""},
    Backend{"shared_fs/hdf5", "one file per version through parallel HDF5", DRIFTLESS_HAS_HDF5 != 0,
            DRIFTLESS_WHY_NOT_HDF5},
    Backend{"mpi_rma", "road of MPI one-sided gets", DRIFTLESS_HAS_MPI != 0, DRIFTLESS_WHY_NOT_MPI},
    Backend{"engines", "HTTP calls to engines through libcurl", DRIFTLESS_HAS_CURL != 0,
            DRIFTLESS_WHY_NOT_CURL},
    Backend{"cuda", "work on elements on the GPU", DRIFTLESS_HAS_CUDA != 0, DRIFTLESS_WHY_NOT_CUDA},
    Backend{"nccl", "road of NCCL broadcasts", DRIFTLESS_HAS_NCCL != 0, DRIFTLESS_WHY_NOT_NCCL},
    Backend{"python", "the module for Megatron", DRIFTLESS_HAS_PYTHON != 0,
            DRIFTLESS_WHY_NOT_PYTHON},
};

Status check_backend(std::string_view name, std::string_view key) {
  const auto* const at = std::find_if(kBackends.begin(), kBackends.end(),
                                      [&](const Backend& backend) { return backend.name == name; });
  if (at->built) return {};
  return error(StatusCode::kUnsupported, key, ": ", name, " is not in this build: ", at->why_not);
}

bool wants_hdf5(const Config& config) {
  return config.road == RoadKind::kSharedFs && config.publisher.layout == DirectoryLayout::kHdf5;
}

std::unique_ptr<PartReader> part_reader(const Config& config) {
#if DRIFTLESS_HAS_HDF5
  if (wants_hdf5(config)) return make_hdf5_reader();
#endif
  static_cast<void>(config);
  return nullptr;
}

Result<std::unique_ptr<ReceiveRoad>> files_receiver(const Config& config) {
  return make_shared_fs_receiver(posix_file_system(), config.shared_fs, part_reader(config));
}

Status check_has_road(JobRole role) {
  if (role != JobRole::kBystander) return {};
  return error(StatusCode::kInvalidArgument,
               "a bystander has no group and no road: only trainers and rollouts have");
}

// A process that knows of no other.
class SoloProcess final : public JobProcess {
 public:
  SoloProcess(Config config, JobRole role) : config_(std::move(config)), role_(role) {}

  [[nodiscard]] unsigned rank() const override { return 0; }
  [[nodiscard]] unsigned trainers() const override { return role_ == JobRole::kTrainer ? 1 : 0; }
  [[nodiscard]] unsigned rollouts() const override { return role_ == JobRole::kRollout ? 1 : 0; }
  [[nodiscard]] bool threads() const override { return true; }
  [[nodiscard]] Result<std::unique_ptr<Group>> group() override {
    return std::unique_ptr<Group>(std::make_unique<SoloGroup>());
  }
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender(std::uint64_t, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return make_shared_fs_sender(posix_file_system(), config_.shared_fs, 0, 1);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return files_receiver(config_);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history() override {
    return files_receiver(config_);
  }
  [[nodiscard]] Status tell_end(std::string_view, const Deadline&) override { return {}; }
  [[nodiscard]] Result<std::optional<std::string>> hear_end() override {
    return std::optional<std::string>();
  }
  [[nodiscard]] Status close(const Deadline&) override { return {}; }
  [[noreturn]] void abandon(int exit_code) override { std::_Exit(exit_code); }

 private:
  Config config_;
  JobRole role_;
};

#if DRIFTLESS_HAS_MPI
class MpiJobProcess final : public JobProcess {
 public:
  MpiJobProcess(Config config, JobRole role, std::unique_ptr<MpiProcess> process)
      : config_(std::move(config)), role_(role), process_(std::move(process)) {}
  // Freeing windows is collective. Where close() was not reached the job is being ended.
  ~MpiJobProcess() override {
    static_cast<void>(world_.release());  // NOLINT(bugprone-unused-return-value)
  }

  [[nodiscard]] unsigned rank() const override { return process_->rank(); }
  [[nodiscard]] unsigned trainers() const override { return process_->trainers(); }
  [[nodiscard]] unsigned rollouts() const override { return process_->rollouts(); }
  [[nodiscard]] bool threads() const override { return world_ == nullptr || world_->threads(); }
  [[nodiscard]] Result<std::unique_ptr<Group>> group() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return make_mpi_group(process_->role());
  }
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                         const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(agree(anchor_bytes, deadline));
    if (config_.road == RoadKind::kMpiRma) return world_->sender();
    std::unique_ptr<PartSink> sink;
#if DRIFTLESS_HAS_HDF5
    if (wants_hdf5(config_)) {
      DRIFTLESS_ASSIGN_OR_RETURN(sink, make_hdf5_sink(process_->role(), Hdf5Options()));
    }
#endif
    return make_shared_fs_sender(posix_file_system(), config_.shared_fs, rank(), trainers(),
                                 std::move(sink));
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(agree(0, deadline));
    if (config_.road == RoadKind::kMpiRma) return world_->receiver();
    return files_receiver(config_);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history() override {
    if (config_.road == RoadKind::kMpiRma) return std::unique_ptr<ReceiveRoad>();
    return files_receiver(config_);
  }
  [[nodiscard]] Status tell_end(std::string_view text, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return process_->tell_end(text, deadline);
  }
  [[nodiscard]] Result<std::optional<std::string>> hear_end() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    return process_->hear_end();
  }
  [[nodiscard]] Status close(const Deadline& deadline) override {
    if (role_ == JobRole::kBystander) return process_->finish(deadline);
    DRIFTLESS_ASSIGN_OR_RETURN(
        [[maybe_unused]] const MpiProcess::Numbers met,
        process_->largest({}, "waiting for all processes of the job to end", deadline));
    if (world_) DRIFTLESS_RETURN_IF_ERROR(world_->close());
    world_.reset();
    return process_->finish(deadline);
  }
  [[noreturn]] void abandon(int exit_code) override { MpiProcess::abandon(exit_code); }

 private:
  // All processes have read their configuration, and mean the same road; then its windows are made.
  [[nodiscard]] Status agree(std::uint64_t anchor_bytes, const Deadline& deadline) {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    const auto kind = static_cast<std::uint64_t>(config_.road);
    const auto layout = static_cast<std::uint64_t>(config_.publisher.layout);
    const std::uint64_t mine = kind * 16 + layout;
    DRIFTLESS_ASSIGN_OR_RETURN(
        const MpiProcess::Numbers agreed,
        process_->largest({mine, ~mine, anchor_bytes, 0},
                          concat("deadlines.connect: ", to_string(role_), " ", rank(),
                                 " waiting for all processes of the job"),
                          deadline));
    if (agreed[0] != mine || ~agreed[1] != mine) {
      return error(StatusCode::kInvalidArgument,
                   "road.kind or road.layout differ between the "
                   "processes of the job: this one (",
                   to_string(role_), " ", rank(), ") has ", to_string(config_.road), " with ",
                   to_string(config_.publisher.layout));
    }
    if (config_.road != RoadKind::kMpiRma) return {};
    MpiRmaOptions options = config_.mpi_rma;
    if (config_.anchor_auto) options.anchor_bytes = agreed[2];
    DRIFTLESS_ASSIGN_OR_RETURN(world_,
                               MpiRmaWorld::create(process_->everybody(), trainers(), options));
    return {};
  }

  Config config_;
  JobRole role_;
  std::unique_ptr<MpiProcess> process_;
  std::unique_ptr<MpiRmaWorld> world_;
};

Result<std::unique_ptr<JobProcess>> join_mpi(const Config& config, JobRole role) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MpiProcess> process, MpiProcess::start(role));
  if (config.road == RoadKind::kMpiRma && process->trainers() == 0) {
    return error(StatusCode::kInvalidArgument,
                 "road.kind: mpi_rma needs trainers in the same job: mpirun -n 1 driftless trainer "
                 "... : -n 1 driftless rollout ...");
  }
  return std::unique_ptr<JobProcess>(
      std::make_unique<MpiJobProcess>(config, role, std::move(process)));
}
#else
Result<std::unique_ptr<JobProcess>> join_mpi(const Config&, JobRole) {
  return error(StatusCode::kUnsupported,
               "this process was started by an MPI launcher, and MPI is not in this build: ",
               DRIFTLESS_WHY_NOT_MPI);
}
#endif

}  // namespace

std::span<const Backend> backends() { return kBackends; }

Status check_built(const Config& config) {
  if (config.road == RoadKind::kMpiRma) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("mpi_rma", "road.kind"));
  }
  if (wants_hdf5(config)) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("shared_fs/hdf5", "road.layout"));
  }
  if (!config.engines.empty()) return check_backend("engines", "engines");
  return {};
}

std::string_view to_string(JobRole role) {
  switch (role) {
    case JobRole::kTrainer: return "trainer";
    case JobRole::kRollout: return "rollout";
    case JobRole::kBystander: return "bystander";
  }
  return "unknown";
}

Result<std::unique_ptr<JobProcess>> JobProcess::join(const Config& config, JobRole role,
                                                     bool launched) {
  DRIFTLESS_RETURN_IF_ERROR(check_built(config));
  if (config.road == RoadKind::kLoopback) {
    return error(StatusCode::kInvalidArgument,
                 "road.kind: loopback joins threads of one process; between processes use mpi_rma "
                 "or shared_fs");
  }
  const bool needs_mpi =
      config.road == RoadKind::kMpiRma || (wants_hdf5(config) && role == JobRole::kTrainer);
  if (launched || needs_mpi) return join_mpi(config, role);
  return std::unique_ptr<JobProcess>(std::make_unique<SoloProcess>(config, role));
}

}  // namespace driftless
