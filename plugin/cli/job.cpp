#include "plugin/cli/job.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/strict_json.h"

namespace driftless::cli {
namespace {

constexpr std::string_view kEndName = "closed.json";
constexpr std::uint64_t kMaxEndBytes = 4096;

// A handler can reach nothing else.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remember_signal(int number) { stop_signal = number; }

std::string end_path(const Config& config) { return join_path(config.shared_fs.dir, kEndName); }

}  // namespace

Result<Config> job_config(const Common& common, const JobArguments& arguments) {
  DRIFTLESS_ASSIGN_OR_RETURN(Config config,
                             load_config(posix_file_system(), arguments.config, arguments.set));
  DRIFTLESS_RETURN_IF_ERROR(check_built(config).with_context(arguments.config));
  if (common.threads != 0) config.publisher.threads = config.receiver.threads = common.threads;
  return config;
}

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS"}) {
    if (std::getenv(name) != nullptr) return true;  // NOLINT(concurrency-mt-unsafe)
  }
  return false;
}

LateHandler end_when_late(const Common& common, const std::function<void()>& before) {
  return [&common, &before](const Status& why) {
    const int code = report(common, why);
    std::cout.flush();
    if (before) before();
    std::_Exit(code);  // mpirun ends the others
  };
}

StopSignals::StopSignals() {
  struct sigaction action{};
  action.sa_handler = remember_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

StopSignals::~StopSignals() {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int StopSignals::received() { return stop_signal; }

std::string end_to_json(const EndOfRun& end) {
  nlohmann::ordered_json json;
  json["run"] = to_hex(end.run);
  json["version"] = end.version;
  json["digest"] = to_hex(end.digest);
  return json.dump();
}

Result<EndOfRun> parse_end(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  EndOfRun end;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string run, json_string(json, "run", what));
  DRIFTLESS_ASSIGN_OR_RETURN(end.run, hash128_from_hex(run));
  DRIFTLESS_ASSIGN_OR_RETURN(end.version, json_u64(json, "version", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string digest, json_string(json, "digest", what));
  DRIFTLESS_ASSIGN_OR_RETURN(end.digest, digest_from_hex(digest));
  return end;
}

Status withdraw_end(const Config& config) {
  if (config.road != RoadKind::kSharedFs) return {};
  const Status removed = posix_file_system().remove_file(end_path(config));
  return removed.code() == StatusCode::kNotFound ? Status() : removed;
}

Status declare_end(JobProcess& process, const Config& config, const EndOfRun& end) {
  const std::string text = end_to_json(end);
  if (process.together()) {
    DRIFTLESS_RETURN_IF_ERROR(process.tell_end(text, Deadline::after(config.connect_deadline)));
  }
  if (config.road != RoadKind::kSharedFs) return {};
  return replace_text(posix_file_system(), end_path(config), text + "\n");
}

Result<std::optional<EndOfRun>> look_for_end(JobProcess& process, const Config& config,
                                             const Hash128& run) {
  std::string text;
  if (process.together()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> heard, process.hear_end());
    if (!heard) return std::optional<EndOfRun>();
    text = *heard;
  } else if (config.road != RoadKind::kSharedFs) {
    return std::optional<EndOfRun>();  // nobody can say it: this rollout goes on until it is
                                       // stopped
  } else {
    const Result<std::string> read = read_text(posix_file_system(), end_path(config), kMaxEndBytes);
    if (read.status().code() == StatusCode::kNotFound) return std::optional<EndOfRun>();
    if (!read.ok()) return read.status();
    text = *read;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const EndOfRun end, parse_end(text, "the trainer's last word"));
  if (end.run != run) return std::optional<EndOfRun>();
  return std::optional<EndOfRun>(end);
}

std::string receiver_id(const Config& config, const JobProcess& process, unsigned rollout) {
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "_%02u", rollout);
  if (!config.receiver_id.empty()) {
    return config.receiver_id + (process.rollouts() > 1 ? number.data() : "");
  }
  if (process.together() || process.rollouts() > 1) return concat("rollout", number.data());
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return concat("rollout_", host.data(), "_", ::getpid());
}

std::string filled_in(std::string path, JobRole role, unsigned rank) {
  const auto replace = [&](std::string_view word, std::string_view value) {
    for (std::size_t at = 0; (at = path.find(word, at)) != std::string::npos; at += value.size()) {
      path.replace(at, word.size(), value);
    }
  };
  replace("{role}", to_string(role));
  replace("{rank}", std::to_string(rank));
  return path;
}

}  // namespace driftless::cli
