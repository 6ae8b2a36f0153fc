// SPDX-License-Identifier: Apache-2.0
// What `driftless trainer` and `driftless rollout` have in common: the configuration and signals.
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

// The configuration that the arguments name, of a kind that was built.
[[nodiscard]] Result<Config> job_config(const Common& common, const JobArguments& arguments);

// From its construction on SIGINT and SIGTERM only ask to stop. One object in a process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();
  // The signal's number, or 0.
  [[nodiscard]] static int received();
};

// Joins the job, runs `work`, and returns the exit code. If that fails it is reported, `clean_up`
// (may be empty) runs, and the process ends without waiting for others, who may be gone; so it does
// if MPI holds it for too long. What `work` made must not be destroyed before.
using JobWork = std::function<Result<int>(const std::shared_ptr<JobProcess>& process)>;
[[nodiscard]] Result<int> run_in_job(const Common& common, const Config& config, JobRole role,
                                     std::string_view word, const std::function<void()>& clean_up,
                                     const JobWork& work);
inline constexpr auto kStopWait = std::chrono::seconds(10);  // for others, after a signal

}  // namespace driftless::cli
