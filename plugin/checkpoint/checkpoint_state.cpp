// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_state.h"

#include <nlohmann/json.hpp>

#include "core/version.h"
#include "formats/strict_json.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {
namespace {

constexpr std::string_view kStateName = "state.json";
constexpr std::uint64_t kMaxStateBytes = 1 << 20;

}  // namespace

std::string sync_path(const std::string& checkpoint, std::string_view name) {
  return join_path(join_path(checkpoint, kSyncDirectory), name);
}

std::string state_to_json(const CheckpointState& state) {
  nlohmann::ordered_json json;
  json["version"] = version_string(state.version);
  if (!state.run.is_zero()) json["run"] = to_hex(state.run);
  if (!state.layout.is_zero()) json["weight_layout"] = to_hex(state.layout);
  if (state.digest) json["digest"] = to_hex(*state.digest);
  return json.dump() + "\n";
}

Result<CheckpointState> parse_state(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  CheckpointState state;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string version, json_string(json, "version", what));
  const Result<std::uint64_t> number = parse_version_string(version);
  if (!number.ok()) return number.status().with_context(what);
  state.version = *number;
  if (json.contains("run")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.run, json_hash128(json, "run", what));
  }
  if (json.contains("weight_layout")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.layout, json_hash128(json, "weight_layout", what));
  }
  if (json.contains("digest")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.digest, json_digest(json, "digest", what));
  }
  return state;
}

Result<CheckpointState> load_state(FileSystem& fs, const std::string& checkpoint) {
  const std::string path = sync_path(checkpoint, kStateName);
  if (!exists(fs, path)) return CheckpointState();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxStateBytes));
  return parse_state(text, path);
}

Status save_state(FileSystem& fs, const std::string& checkpoint, const CheckpointState& state) {
  return replace_text(fs, sync_path(checkpoint, kStateName), state_to_json(state));
}

Status check_no_journal(FileSystem& fs, const std::string& checkpoint) {
  const std::string path = sync_path(checkpoint, kJournalName);
  if (!exists(fs, path)) return {};
  return error(StatusCode::kBusy, path,
               ": an apply was interrupted here, or is running; run 'driftless apply' on ",
               checkpoint, " again to finish it");
}

}  // namespace driftless
