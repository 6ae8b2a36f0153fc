// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/job.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

namespace driftless::cli {
namespace {

// A signal handler can only reach a global variable.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remember_signal(int number) { stop_signal = number; }

void handle_signals(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

Result<Config> job_config(const Common& common, const JobArguments& arguments) {
  DRIFTLESS_ASSIGN_OR_RETURN(Config config,
                             load_config(posix_file_system(), arguments.config, arguments.set));
  DRIFTLESS_RETURN_IF_ERROR(
      check_available(road_table(), config, {}).with_context(arguments.config));
  if (common.threads != 0) config.publisher.threads = config.receiver.threads = common.threads;
  return config;
}

Result<int> run_in_job(const Common& common, const Config& config, JobRole role,
                       std::string_view word, const std::function<void()>& clean_up,
                       const JobWork& work) {
  const StopSignals signals;
  const LateHandler late = [&](const Status& why) {
    if (clean_up) clean_up();
    const int code = report(common, why);
    std::cout.flush();
    // When the first rank ends, mpirun kills the others. They time out at about the same moment and
    // still have files to remove.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(code);
  };
  DRIFTLESS_ASSIGN_OR_RETURN(const Launch launch, launch_of_process());
  if (role == JobRole::kTrainer && !launch.mpi && launch.world > 1 && !config.hub_group) {
    return error(StatusCode::kInvalidArgument, to_string(launch.launcher), " started ",
                 launch.world,
                 " trainers, and nothing joins them: set hub.group: true and hub.token_file, or "
                 "start them by mpirun or srun --mpi=pmix, or start one");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<JobProcess> process,
                             join_job(road_table(), config, role, launch, late));
  const Result<int> done = work(process);
  if (done.ok()) return *done;
  const int code = report(common, done.status().with_context(concat(word, " ", process->rank())));
  std::cout.flush();
  if (clean_up) clean_up();
  process->abandon(code);
  return code;  // not reached
}

StopSignals::StopSignals() { handle_signals(remember_signal); }
StopSignals::~StopSignals() { handle_signals(SIG_DFL); }

int StopSignals::received() { return stop_signal; }

}  // namespace driftless::cli
