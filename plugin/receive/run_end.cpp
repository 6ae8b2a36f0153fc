// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/run_end.h"

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

namespace {

Result<std::optional<EndOfRun>> read_end(const EndListener::Note& note, const Hash128& run) {
  DRIFTLESS_RETURN_IF_ERROR(note.status());
  if (!*note) return std::optional<EndOfRun>();
  DRIFTLESS_ASSIGN_OR_RETURN(const EndOfRun end,
                             parse_end(**note, "the trainer's end-of-run note"));
  return end.run == run ? std::optional(end) : std::nullopt;
}

}  // namespace

Result<std::optional<EndOfRun>> EndListener::listen(const Note& note, const Hash128& run) {
  Result<std::optional<EndOfRun>> end = read_end(note, run);
  if (end.status().code() != StatusCode::kCorrupt) {
    unreadable_.reset();
    return end;
  }
  if (!unreadable_) unreadable_ = Deadline::after(patience_);
  if (unreadable_->expired()) return end;
  return std::optional<EndOfRun>();
}

void TrainerContact::note(const Status& report) {
  alive_ = Deadline::after(kSignOfLife);
  last_report_ = report;
  if (report.code() != StatusCode::kDeadlineExceeded) {
    silent_.reset();
  } else if (!silent_) {
    silent_ = Deadline::after(patience_);
  }
}

Status TrainerContact::check(std::uint64_t version) const {
  if (!silent_ || !silent_->expired()) return {};
  return last_report_.with_context(concat("no report was accepted for deadlines.connect (",
                                          patience_.count(), " ms), at version ", version));
}

}  // namespace driftless
