#include "plugin/job/roads.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/loopback/loopback_road.h"
#include "collectives/shared_fs/shared_fs_road.h"
#if DRIFTLESS_HAS_MPI
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "plugin/job/mpi_process.h"
#endif
#if DRIFTLESS_HAS_HDF5
#include "collectives/shared_fs/hdf5_container.h"
#endif
#if DRIFTLESS_HAS_NCCL
#include "plugin/job/nccl_roads.h"
#if DRIFTLESS_HAS_MPI
#include "collectives/nccl/mpi_rendezvous.h"
#endif
#endif

#if DRIFTLESS_HAS_CUDA
#include "plugin/device/device_masked.h"
#include "plugin/device/device_weight_memory.h"
#include "plugin/device/device_side.h"
#endif

namespace driftless {
namespace {

constexpr std::array kBackends = {
    Backend{"loopback", "road inside one process: tests and measurements", true, ""},
    Backend{"host_shm", "road of shared memory on one host", true, ""},
    Backend{"shared_fs", "road of files: flush, hf_delta, frames", true, ""},
    Backend{"shared_fs/hdf5", "one file per version through parallel HDF5", DRIFTLESS_HAS_HDF5 != 0,
            DRIFTLESS_WHY_NOT_HDF5},
    Backend{"mpi_rma", "road of MPI one-sided gets", DRIFTLESS_HAS_MPI != 0, DRIFTLESS_WHY_NOT_MPI},
    Backend{"engines", "HTTP calls to engines through libcurl", DRIFTLESS_HAS_CURL != 0,
            DRIFTLESS_WHY_NOT_CURL},
    Backend{"cuda", "work on elements on the GPU", DRIFTLESS_HAS_CUDA != 0, DRIFTLESS_WHY_NOT_CUDA},
    Backend{"nccl", "road of NCCL broadcasts", DRIFTLESS_HAS_NCCL != 0, DRIFTLESS_WHY_NOT_NCCL},
    Backend{"nccl/tcp", "rendezvous of the nccl road over TCP", DRIFTLESS_HAS_OPENSSL != 0,
            DRIFTLESS_WHY_NOT_OPENSSL},
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

// Trainers and rollouts are one mpirun job.
bool meets_by_mpi(const Config& config) {
  return config.road == RoadKind::kMpiRma ||
         (config.road == RoadKind::kNccl && config.rendezvous.kind == RendezvousKind::kMpi);
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

#if DRIFTLESS_HAS_NCCL
// The ways to meet that need no other process' help; an empty one is refused by check_built().
NcclMeeting meeting_of(const Config& config) {
  const RendezvousOptions& options = config.rendezvous;
#if DRIFTLESS_HAS_OPENSSL
  if (options.kind == RendezvousKind::kTcp) {
    return {[options] { return nccl::make_tcp_hub(options); },
            [options] { return nccl::make_tcp_connector(options); }};
  }
#endif
  return {[options] { return nccl::make_file_hub(options); },
          [options] { return nccl::make_file_connector(options); }};
}
#endif

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
#if DRIFTLESS_HAS_NCCL
    if (config_.road == RoadKind::kNccl) {
      return make_nccl_sender(config_.nccl, 0, 1, meeting_of(config_));
    }
#endif
    if (config_.road == RoadKind::kHostShm) return make_host_shm_sender(config_.host_shm);
    return make_shared_fs_sender(posix_file_system(), config_.shared_fs, 0, 1);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
#if DRIFTLESS_HAS_NCCL
    if (config_.road == RoadKind::kNccl) {
      return make_nccl_receiver(config_.nccl, meeting_of(config_));
    }
#endif
    if (config_.road == RoadKind::kHostShm) return make_host_shm_receiver(config_.host_shm);
    return files_receiver(config_);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history() override {
    if (config_.road != RoadKind::kSharedFs) return std::unique_ptr<ReceiveRoad>();
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
constexpr std::chrono::seconds kCloseGrace{30};

class MpiJobProcess final : public JobProcess {
 public:
  MpiJobProcess(Config config, JobRole role, std::unique_ptr<MpiProcess> process, LateHandler late)
      : config_(std::move(config)),
        role_(role),
        process_(std::move(process)),
        late_(std::move(late)) {}
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
    const Watchdog watchdog(connect(), late_text("meeting the other trainers"), late_);
    return make_mpi_group(process_->role());
  }
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                         const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(agree(anchor_bytes, deadline));
    const Watchdog watchdog(connect(), late_text("making the road"), late_);
    if (config_.road == RoadKind::kMpiRma) return world_->sender();
#if DRIFTLESS_HAS_NCCL
    if (config_.road == RoadKind::kNccl) {
      NcclOptions options = config_.nccl;
      if (options.receivers == 0) options.receivers = rollouts();
      return make_nccl_sender(options, rank(), trainers(), nccl_meeting());
    }
#endif
    if (config_.road == RoadKind::kHostShm) return host_shm_sender();
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
#if DRIFTLESS_HAS_NCCL
    if (config_.road == RoadKind::kNccl) return make_nccl_receiver(config_.nccl, nccl_meeting());
#endif
    if (config_.road == RoadKind::kHostShm) return make_host_shm_receiver(config_.host_shm);
    return files_receiver(config_);
  }
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history() override {
    if (config_.road != RoadKind::kSharedFs) return std::unique_ptr<ReceiveRoad>();
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
    // What waits for others there has deadlines of its own, which come first.
    const Watchdog watchdog(Deadline::after(config_.connect_deadline + kCloseGrace),
                            late_text("freeing windows and MPI_Finalize"), late_);
    if (world_) DRIFTLESS_RETURN_IF_ERROR(world_->close());
    world_.reset();
    return process_->finish(deadline);
  }
  [[noreturn]] void abandon(int exit_code) override { MpiProcess::abandon(exit_code); }

 private:
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> host_shm_sender() const {
    if (trainers() == 1) return make_host_shm_sender(config_.host_shm);
    return error(StatusCode::kInvalidArgument, "road.kind: host_shm has one sending process, and ",
                 trainers(), " trainers publish: use mpi_rma, nccl or shared_fs");
  }
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
    const Watchdog watchdog(connect(), late_text("making the windows of mpi_rma"), late_);
    DRIFTLESS_ASSIGN_OR_RETURN(world_,
                               MpiRmaWorld::create(process_->everybody(), trainers(), options));
    return {};
  }

  [[nodiscard]] Deadline connect() const { return Deadline::after(config_.connect_deadline); }
  [[nodiscard]] std::string late_text(std::string_view what) const {
    return concat("deadlines.connect: ", to_string(role_), " ", rank(), " within MPI, ", what);
  }
#if DRIFTLESS_HAS_NCCL
  [[nodiscard]] NcclMeeting nccl_meeting() {
    if (config_.rendezvous.kind != RendezvousKind::kMpi) return meeting_of(config_);
    const MPI_Comm everybody = process_->everybody();  // the leading trainer is its first
    return {[everybody] { return nccl::make_mpi_hub(everybody); },
            [everybody] { return nccl::make_mpi_connector(everybody, 0); }};
  }
#endif

  Config config_;
  JobRole role_;
  std::unique_ptr<MpiProcess> process_;
  LateHandler late_;
  std::unique_ptr<MpiRmaWorld> world_;
};

Result<std::unique_ptr<JobProcess>> join_mpi(const Config& config, JobRole role,
                                             const LateHandler& late) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<MpiProcess> process,
      MpiProcess::start(role, Deadline::after(config.connect_deadline), late));
  if (meets_by_mpi(config) && process->trainers() == 0) {
    return error(StatusCode::kInvalidArgument, "road.kind: ", to_string(config.road),
                 " needs trainers in the same job: mpirun -n 1 driftless trainer "
                 "... : -n 1 driftless rollout ...");
  }
  return std::unique_ptr<JobProcess>(
      std::make_unique<MpiJobProcess>(config, role, std::move(process), late));
}
#else
Result<std::unique_ptr<JobProcess>> join_mpi(const Config&, JobRole, const LateHandler&) {
  return error(StatusCode::kUnsupported,
               "this process was started by an MPI launcher, and MPI is not in this build: ",
               DRIFTLESS_WHY_NOT_MPI);
}
#endif

}  // namespace

std::span<const Backend> backends() { return kBackends; }

Result<std::shared_ptr<DeviceSide>> open_device(const Config& config) {
  if (config.gpu.snapshot == SnapshotPlace::kHost) return std::shared_ptr<DeviceSide>();
#if DRIFTLESS_HAS_CUDA
  return make_device_side(config.gpu);
#else
  return check_backend("cuda", concat("snapshot: ", to_string(config.gpu.snapshot)));
#endif
}

Result<std::unique_ptr<DeviceTarget>> open_device_target(const Config& config,
                                                         const std::optional<std::string>& base) {
#if DRIFTLESS_HAS_CUDA
  DeviceTargetOptions options;
  options.device = config.gpu.device;
  options.threads = config.receiver.threads;
  return make_owned_device_target(posix_file_system(), base, options);
#else
  static_cast<void>(config);
  static_cast<void>(base);
  return check_backend("cuda", "receiver.target: device");
#endif
}

Result<std::shared_ptr<WeightMemory>> open_device_memory(int device) {
#if DRIFTLESS_HAS_CUDA
  return make_device_memory(device);
#else
  static_cast<void>(device);
  return check_backend("cuda", "parameters on a GPU");
#endif
}

Result<std::unique_ptr<MaskedDevice>> open_masked_device(int device) {
#if DRIFTLESS_HAS_CUDA
  return make_masked_device(device);
#else
  static_cast<void>(device);
  return check_backend("cuda", "parameters on a GPU");
#endif
}

Status check_built(const Config& config) {
  if (config.target == TargetKind::kDevice) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("cuda", "receiver.target: device"));
  }
  if (config.gpu.snapshot != SnapshotPlace::kHost) {
    DRIFTLESS_RETURN_IF_ERROR(
        check_backend("cuda", concat("snapshot: ", to_string(config.gpu.snapshot))));
  }
  if (config.road == RoadKind::kMpiRma) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("mpi_rma", "road.kind"));
  }
  if (wants_hdf5(config)) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("shared_fs/hdf5", "road.layout"));
  }
  if (config.road == RoadKind::kNccl) {
    DRIFTLESS_RETURN_IF_ERROR(check_backend("nccl", "road.kind"));
    if (config.rendezvous.kind == RendezvousKind::kTcp) {
      DRIFTLESS_RETURN_IF_ERROR(check_backend("nccl/tcp", "road.nccl.rendezvous"));
    }
    if (config.rendezvous.kind == RendezvousKind::kMpi) {
      DRIFTLESS_RETURN_IF_ERROR(check_backend("mpi_rma", "road.nccl.rendezvous"));
    }
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
                                                     bool launched, const LateHandler& late) {
  DRIFTLESS_RETURN_IF_ERROR(check_built(config));
  if (config.road == RoadKind::kLoopback) {
    return error(StatusCode::kInvalidArgument,
                 "road.kind: loopback joins threads of one process; between processes use mpi_rma, "
                 "nccl, shared_fs or host_shm");
  }
  const bool needs_mpi = meets_by_mpi(config) || (wants_hdf5(config) && role == JobRole::kTrainer);
  if (launched || needs_mpi) return join_mpi(config, role, late);
  return std::unique_ptr<JobProcess>(std::make_unique<SoloProcess>(config, role));
}

}  // namespace driftless
