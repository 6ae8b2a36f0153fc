// The list of what this build can do, and how a process of a job gets its road.
//
// roads.cpp is the one place that knows which backends were built.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collectives/group.h"
#include "collectives/road.h"
#include "core/deadline.h"
#include "core/status.h"
#include "plugin/device/device_target.h"
#include "plugin/job/config.h"
#include "plugin/job/watchdog.h"
#include "plugin/targets/masked_device.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

struct Backend {
  std::string_view name;  // "mpi_rma", "shared_fs/hdf5", "engines", ...
  std::string_view help;
  bool built = false;
  std::string_view why_not;  // where it is not built
};
[[nodiscard]] std::span<const Backend> backends();
// kUnsupported, with the reason, where the configuration asks for what was not built.
[[nodiscard]] Status check_built(const Config& config);

// The publisher's side of the GPU, where the configuration asks for one (else null). For
// PublisherOptions::device.
[[nodiscard]] Result<std::shared_ptr<DeviceSide>> open_device(const Config& config);
// A rollout's weights on its GPU (make_owned_device_target()).
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> open_device_target(
    const Config& config, const std::optional<std::string>& base);

// Where a module on a GPU keeps its parameters (make_device_memory()).
[[nodiscard]] Result<std::shared_ptr<WeightMemory>> open_device_memory(int device);
// What its loader's masked overwrites go through (make_masked_device()).
[[nodiscard]] Result<std::unique_ptr<MaskedDevice>> open_masked_device(int device);

// A bystander is a process of the trainer that publishes nothing: it joins and closes with the
// others, and has neither a group nor a road.
enum class JobRole : unsigned char { kTrainer, kRollout, kBystander };
[[nodiscard]] std::string_view to_string(JobRole role);  // "trainer", "rollout", "bystander"

// One process of a job. Used by one thread: the one that joined. Outlives the groups and roads that
// it made; those are destroyed before close().
class JobProcess {
 public:
  // `launched`: mpirun (or another launcher of MPI programs) started this process; all processes
  // that it started join. Else MPI is used only where the road needs it. `late`: what to do where
  // MPI itself waits for longer than config.connect_deadline, in a call that knows no deadline
  // (here, while the road is made, at the end); watchdog.h. Without it such calls are waited for.
  [[nodiscard]] static Result<std::unique_ptr<JobProcess>> join(const Config& config, JobRole role,
                                                                bool launched,
                                                                const LateHandler& late = {});
  virtual ~JobProcess() = default;

  [[nodiscard]] virtual unsigned rank() const = 0;      // among those of its role
  [[nodiscard]] virtual unsigned trainers() const = 0;  // that it knows of, and that publish
  [[nodiscard]] virtual unsigned rollouts() const = 0;
  // Trainers and rollouts were started as one job, and can hear each other.
  [[nodiscard]] bool together() const { return trainers() > 0 && rollouts() > 0; }

  // Whether a road may be used by other threads than the one that joined (one at a time). Known
  // once it is made.
  [[nodiscard]] virtual bool threads() const = 0;

  // [trainers, collective] A new one on every call.
  [[nodiscard]] virtual Result<std::unique_ptr<Group>> group() = 0;
  // [all but bystanders, collective: trainers call sender(), rollouts receiver()]
  // kInvalidArgument where they are not configured alike. `anchor_bytes`: room for an anchor of
  // this rank, where the configuration leaves it open.
  [[nodiscard]] virtual Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                                 const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline& deadline) = 0;
  // [trainers] Reads what the road held before this process; null where it forgets.
  [[nodiscard]] virtual Result<std::unique_ptr<ReceiveRoad>> history() = 0;

  // Where they are together(): the leading trainer's last word to all rollouts; and, on a rollout,
  // what it was, once it has come.
  [[nodiscard]] virtual Status tell_end(std::string_view text, const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::optional<std::string>> hear_end() = 0;

  // Collective: the orderly end. Without it nothing is waited for.
  [[nodiscard]] virtual Status close(const Deadline& deadline) = 0;
  // Ends this process, and with it the job that it is part of: no other process is left waiting.
  [[noreturn]] virtual void abandon(int exit_code) = 0;
};

}  // namespace driftless
