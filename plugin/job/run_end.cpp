#include "plugin/job/run_end.h"

#include <nlohmann/json.hpp>

#include "core/file_system.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::string_view kEndName = "closed.json";
constexpr std::uint64_t kMaxEndBytes = 4096;

std::string end_path(const Config& config) { return join_path(config.shared_fs.dir, kEndName); }

}  // namespace

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

Status withdraw_end(const Config& config) {  // on host_shm the sender's start has done it
  if (config.road != RoadKind::kSharedFs) return {};
  const Status removed = posix_file_system().remove_file(end_path(config));
  return removed.code() == StatusCode::kNotFound ? Status() : removed;
}

Status declare_end(JobProcess& process, const Config& config, const EndOfRun& end) {
  const std::string text = end_to_json(end);
  if (process.together()) {
    DRIFTLESS_RETURN_IF_ERROR(process.tell_end(text, Deadline::after(config.connect_deadline)));
  }
  if (config.road == RoadKind::kHostShm) return tell_host_shm_end(config.host_shm, text);
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
  } else if (config.road == RoadKind::kHostShm) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> heard,
                               hear_host_shm_end(config.host_shm));
    if (!heard) return std::optional<EndOfRun>();
    text = *heard;
  } else if (config.road != RoadKind::kSharedFs) {
    return std::optional<EndOfRun>();  // nobody can say it: it goes on until it is stopped
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

}  // namespace driftless
