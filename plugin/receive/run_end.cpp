// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/run_end.h"

#include <algorithm>
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

std::chrono::milliseconds TrainerContact::report_time(std::chrono::milliseconds longest,
                                                      std::chrono::milliseconds patience) {
  return std::min(longest, std::max(patience / 2, kLeastTime));
}

Deadline TrainerContact::begin_report(std::chrono::milliseconds longest) {
  end_ = Deadline::after(patience_);
  const auto most = report_time(longest, patience_);
  return Deadline::after(silent_ ? std::min(most, std::max(silent_->remaining(), kLeastTime))
                                 : most);
}

void TrainerContact::note(const Status& report) {
  alive_ = Deadline::after(kSignOfLife);
  last_report_ = report;
  again_ = silent_.has_value();
  if (report.code() != StatusCode::kDeadlineExceeded) {
    silent_.reset();
  } else if (!silent_) {
    silent_ = end_;
  }
}

Status TrainerContact::check(std::uint64_t version) const {
  if (!silent_ || !again_ || !silent_->expired()) return {};
  return last_report_.with_context(concat("no report was accepted for deadlines.connect (",
                                          patience_.count(), " ms), at version ", version));
}

}  // namespace driftless
