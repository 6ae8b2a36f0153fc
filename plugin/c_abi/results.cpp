// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/results.h"

#include <cstring>
#include <string>

namespace driftless::c_abi {

// Of all these buffers.
constexpr std::size_t kHexRoom = sizeof(driftless_report::digest);
static_assert(kHexRoom == 33 && sizeof(driftless_end::digest) == kHexRoom &&
              sizeof(driftless_state::digest) == kHexRoom &&
              sizeof(driftless_state::run) == kHexRoom);

void put_hex(const std::string& digits, char* out) { std::memcpy(out, digits.c_str(), kHexRoom); }

driftless_report report_of(const UpdateReport& report) {
  driftless_report made{};
  made.struct_size = sizeof(made);
  made.from_version = report.from_version;
  made.version = report.version;
  made.versions = report.versions;
  made.changed_units = report.changed_units;
  made.full_bytes = report.full_bytes;
  made.delta_bytes = report.delta_bytes;
  made.wire_bytes = report.wire_bytes;
  made.fetch_ms = report.fetch_ms;
  made.stage_ms = report.stage_ms;
  made.pause_ms = report.pause_ms;
  made.apply_ms = report.apply_ms;
  made.resume_ms = report.resume_ms;
  made.anchor = report.anchor ? 1 : 0;
  made.notes = static_cast<int32_t>(report.notes.size());
  put_hex(to_hex(report.digest), made.digest);
  return made;
}

driftless_end end_of(const std::optional<EndOfRun>& end, const TargetState& state) {
  driftless_end made{};
  made.struct_size = sizeof(made);
  if (!end) return made;
  made.ended = 1;
  made.version = end->version;
  const bool proven = state.partial || state.digest == end->digest;
  made.reached = state.valid && state.id.version == end->version && proven ? 1 : 0;
  put_hex(to_hex(end->digest), made.digest);
  return made;
}

driftless_metrics metrics_of(const AbiView& view) {
  const SessionCounts& counts = view.counts;
  driftless_metrics made{};
  made.struct_size = sizeof(made);
  made.version = view.state.id.version;
  made.newest = counts.newest;
  made.commits = counts.commits;
  made.versions = counts.versions;
  made.anchors = counts.anchors;
  made.rollbacks = counts.rollbacks;
  made.stage_failures = counts.stage_failures;
  made.commit_failures = counts.commit_failures;
  made.unheard = counts.unheard;
  made.changed_units = counts.changed_units;
  made.delta_bytes = counts.delta_bytes;
  made.wire_bytes = counts.wire_bytes;
  made.fetch_ms = counts.fetch_ms;
  made.stage_ms = counts.stage_ms;
  made.pause_ms = counts.pause_ms;
  made.apply_ms = counts.apply_ms;
  made.resume_ms = counts.resume_ms;
  made.longest_pause_ms = counts.longest_pause_ms;
  return made;
}

driftless_state state_of(const AbiView& view) {
  driftless_state made{};
  made.struct_size = sizeof(made);
  made.version = view.state.id.version;
  made.started = view.started ? 1 : 0;
  made.staged = view.staged ? 1 : 0;
  made.valid = view.state.valid ? 1 : 0;
  made.partial = view.state.partial ? 1 : 0;
  made.rank = view.rank;
  put_hex(to_hex(view.state.digest), made.digest);
  put_hex(to_hex(view.run), made.run);
  return made;
}

}  // namespace driftless::c_abi
