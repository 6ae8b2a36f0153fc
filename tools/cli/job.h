// What `driftless trainer` and `driftless rollout` have in common: the configuration and signals.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plugin/job/config.h"
#include "plugin/job/job_names.h"
#include "plugin/job/launched.h"
#include "plugin/job/roads.h"
#include "plugin/job/run_end.h"
#include "tools/cli/console.h"

namespace driftless::cli {

struct JobArguments {
  std::string config;
  std::vector<std::string> set;
};

// The configuration that the arguments name, of a kind that was built.
[[nodiscard]] Result<Config> job_config(const Common& common, const JobArguments& arguments);

// Reports what MPI holds for too long, lets `before` clean up, and ends the process. Both outlive
// the job.
[[nodiscard]] LateHandler end_when_late(const Common& common, const std::function<void()>& before);

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

}  // namespace driftless::cli
