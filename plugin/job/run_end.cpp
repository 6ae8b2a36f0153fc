// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/run_end.h"

#include <nlohmann/json.hpp>

#include "formats/strict_json.h"

namespace driftless {

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

Result<std::optional<EndOfRun>> EndListener::listen(JobProcess& process, const Hash128& run) {
  Result<std::optional<EndOfRun>> end = look(process, run);
  if (end.status().code() != StatusCode::kCorrupt) {
    unreadable_.reset();
    return end;
  }
  if (!unreadable_) unreadable_ = Deadline::after(patience_);
  if (unreadable_->expired()) return end;
  return std::optional<EndOfRun>();
}

Result<std::optional<EndOfRun>> EndListener::look(JobProcess& process, const Hash128& run) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> heard, process.hear_end());
  if (!heard) return std::optional<EndOfRun>();
  DRIFTLESS_ASSIGN_OR_RETURN(const EndOfRun end, parse_end(*heard, "the trainer's last word"));
  if (end.run != run) return std::optional<EndOfRun>();
  return std::optional<EndOfRun>(end);
}

}  // namespace driftless
