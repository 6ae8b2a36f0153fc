// SPDX-License-Identifier: Apache-2.0
// The common parts of `driftless trainer`, `rollout` and `agent`: configuration and signals.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/job/config.h"
#include "plugin/job/job_process.h"
#include "plugin/receive/run_end.h"
#include "tools/cli/console.h"

namespace driftless::cli {

struct JobArguments {
  std::string config;
  std::vector<std::string> set;
};

// Reads the configuration that the arguments name, and checks that its road was built.
[[nodiscard]] Result<Config> job_config(const Common& common, const JobArguments& arguments);

// While it lives, SIGINT and SIGTERM only set a request to stop. One object per process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();
  // The signal's number, or 0.
  [[nodiscard]] static int received();
};

// Joins the job, runs `work` and returns the exit code. If `work` fails, this reports the failure,
// runs `clean_up` (may be empty) and ends the process without waiting for others, who may be gone;
// likewise if MPI blocks for too long. Objects made by `work` must not be destroyed before.
using JobWork = std::function<Result<int>(const std::shared_ptr<JobProcess>& process)>;
[[nodiscard]] Result<int> run_in_job(const Common& common, const Config& config, JobRole role,
                                     std::string_view word, const std::function<void()>& clean_up,
                                     const JobWork& work);
// The time to wait for other processes after a signal.
inline constexpr auto kStopWait = std::chrono::seconds(10);

}  // namespace driftless::cli
