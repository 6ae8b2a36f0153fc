// SPDX-License-Identifier: Apache-2.0
// The checks of `driftless doctor`: what this host and a configuration can do.
//
// A check is a function from a context to findings. Each check runs in a separate process, all at
// the same time: if it hangs in a system call, or its library crashes, only its own findings are
// lost. No check changes an engine, a road or the host.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/finding.h"
#include "core/launch.h"
#include "plugin/job/config.h"
#include "plugin/job/roads.h"

namespace driftless::doctor {

struct Context {
  const RoadTable* roads = nullptr;
  std::vector<Backend> backends;        // of `roads`
  Config config;                        // the defaults, unless `configured`
  bool configured = false;              // a valid configuration was given
  Status config_status;                 // the reason if it is not valid
  std::vector<EngineEndpoint> engines;  // of the configuration and the command line
  std::string python = "python3";
  std::string self;                         // this executable
  std::string release;                      // of this executable
  Variables variables;                      // the environment
  Deadline deadline = Deadline::after({});  // for every check

  // The row of the road that the configuration asks for; null without a configuration.
  [[nodiscard]] const Road* road() const;
  // Whether the configuration uses a backend by this name: "mpi_rma", "cuda", "engines", ...
  [[nodiscard]] bool needs(std::string_view backend) const;
  [[nodiscard]] bool needs_mpi() const;
  [[nodiscard]] bool needs_gpu() const;
  // Why a backend cannot be used; empty if it can.
  [[nodiscard]] std::string why_not(std::string_view backend) const;
  // Whether this build has it. What it needs at run time may still be missing.
  [[nodiscard]] bool in_build(std::string_view backend) const;
  // The size of the checkpoint that the configuration names, if it is on this host; 0: not known.
  [[nodiscard]] std::uint64_t checkpoint_bytes() const;
};

// kFail if the component is needed, else `otherwise`.
[[nodiscard]] inline FindingState unless_needed(bool needed, FindingState otherwise) {
  return needed ? FindingState::kFail : otherwise;
}

// Receives findings as they are made, so that those of a check that is killed are kept.
using Report = std::function<void(Finding)>;

struct Check {
  std::string group;  // "mpi", "engine http://..."
  std::function<void(const Context&, const Report&)> run;
  // The state to report if the check does not end in time.
  FindingState late = FindingState::kFail;
  std::string next_if_late = {};
};

struct Row {
  std::string group;
  Finding finding;
};

// All checks for this context. `only`: the groups to run, by their first word; empty: all.
[[nodiscard]] std::vector<Check> all_checks(const Context& context,
                                            std::span<const std::string> only = {});
// The groups that `only` may name.
[[nodiscard]] std::span<const std::string_view> all_groups();

// Returns rows in the order of the checks, at the latest at the context's deadline. A check that is
// still running is killed and reported, and so is every process that a check has started. This
// process must have no other thread and no other child.
[[nodiscard]] std::vector<Row> run_checks(std::span<const Check> checks, const Context& context);

// --- the checks, one file per group --------------------------------------------------------------

void check_configuration(const Context& context, const Report& report);
void check_mpi(const Context& context, const Report& report);
void check_cuda(const Context& context, const Report& report);
void check_nccl(const Context& context, const Report& report);
void check_nixl(const Context& context, const Report& report);
void check_road(const Context& context, const Report& report);
void check_host(const Context& context, const Report& report);
void check_python(const Context& context, const Report& report);
void check_engine(const EngineEndpoint& engine, const Context& context, const Report& report);

// Runs under mpirun, started by doctor: two ranks create the windows of mpi_rma, and one reads what
// the other announced. Prints a line and returns 0 on success.
[[nodiscard]] Result<int> run_mpi_probe(const RoadTable& roads);
inline constexpr std::string_view kProbeSuccess = "mpi probe: read through a window";

}  // namespace driftless::doctor
