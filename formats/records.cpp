// SPDX-License-Identifier: Apache-2.0
#include "formats/records.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/host_name.h"
#include "core/line_log.h"
#include "core/utc_time.h"
#include "formats/receiver_needs.h"

namespace driftless {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson begin(const RecordOrigin& origin, const Hash128& run) {
  OrderedJson json = {{"role", origin.role}, {"rank", origin.rank},
                      {"host", origin.host}, {"time", origin.time},
                      {"run", to_hex(run)},  {"monotonic_ms", origin.monotonic_ms}};
  if (!origin.id.empty()) json["id"] = origin.id;
  return json;
}

void add(OrderedJson& json, const CommitTimes& commit) {
  json["stage_ms"] = commit.stage_ms;
  json["pause_ms"] = commit.pause_ms;
  json["apply_ms"] = commit.apply_ms;
  json["resume_ms"] = commit.resume_ms;
}

void add(OrderedJson& json, const VersionRecord::Published& published) {
  json["encoding"] = info(published.encoding).name;
  json["density"] = published.density;
  json["compare_ms"] = published.compare_ms;
  json["encode_ms"] = published.encode_ms;
  json["send_ms"] = published.send_ms;
  json["seal_ms"] = published.seal_ms;
  json["process_ms"] = published.process_ms;
  json["manifest_publish_ms"] = published.manifest_publish_ms;
  json["total_ms"] = published.total_ms;
}

void add(OrderedJson& json, const VersionRecord::Captured& captured) {
  json["captured_bytes"] = captured.captured_bytes;
  json["resent_tensors"] = captured.resent_tensors;
  json["capture_ms"] = captured.capture_ms;
  json["sweep_ms"] = captured.sweep_ms;
  json["step_ms"] = captured.step_ms;
}

void add(OrderedJson& json, const VersionRecord::Received& received) {
  json["needed_bytes"] = received.needed_bytes;
  json["fetch_ms"] = received.fetch_ms;
  add(json, received.commit);
  if (!received.carrier.empty()) json["carrier"] = received.carrier;
}

void add(OrderedJson& json, const VersionRecord::Delivered& delivered) {
  json["needed_bytes"] = delivered.needed_bytes;
  json["fetch_ms"] = delivered.fetch_ms;
  json["apply_ms"] = delivered.apply_ms;
  json["process_ms"] = delivered.process_ms;
  json["plain_bytes"] = delivered.plain_bytes;
  if (!delivered.carrier.empty()) json["carrier"] = delivered.carrier;
}

double number_after(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return 0.0;
  double value = 0;
  std::from_chars(text.data() + at + key.size(), text.data() + text.size(), value);
  return value;
}

}  // namespace

RecordOrigin record_origin(std::string_view role, unsigned rank,
                           std::chrono::steady_clock::time_point done) {
  const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::steady_clock::now() - done);
  const std::chrono::duration<double, std::milli> at = done.time_since_epoch();
  return {role, rank, host_name(), utc_text(std::chrono::system_clock::now() - ago), at.count()};
}

std::optional<std::int64_t> unix_ms(std::string_view time) {
  const std::string text(time);  // strptime() needs a terminating zero
  std::tm parts{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  int milliseconds = 0;
  if (rest == nullptr || std::sscanf(rest, ".%3dZ", &milliseconds) != 1) return std::nullopt;
  return std::int64_t{::timegm(&parts)} * 1'000 + milliseconds;
}

OrderedJson to_json(const VersionRecord& record) {
  OrderedJson json = begin(record.origin, record.run);
  json["version"] = record.version;
  json["base_version"] = record.base_version;
  json["versions"] = record.versions;
  json["anchor"] = record.anchor;
  json["digest"] = to_hex(record.digest);
  json["changed_units"] = record.changed_units;
  json["full_bytes"] = record.full_bytes;
  json["delta_bytes"] = record.delta_bytes;
  json["wire_bytes"] = record.wire_bytes;
  if (!record.fallback.empty()) json["fallback"] = record.fallback;
  for (const TensorDensity& change : record.most_changed) {
    json["most_changed"].push_back({{"tensor", change.tensor},
                                    {"changed_units", change.changed_units},
                                    {"total_units", change.total_units}});
  }
  if (record.published) add(json, *record.published);
  if (record.captured) add(json, *record.captured);
  if (record.received) add(json, *record.received);
  if (record.delivered) add(json, *record.delivered);
  return json;
}

OrderedJson to_json(const EngineRecord& record) {
  OrderedJson json = begin(record.origin, record.run);
  json["engine"] = without_users(record.engine);
  json["kind"] = record.kind;
  json["version"] = record.version;
  json["goal"] = record.goal;
  json["digest"] = record.digest;
  json["proven"] = record.proven;
  json["status"] = to_string(record.status.code());
  if (!record.status.ok()) json["error"] = without_users(record.status.message());
  json["reachable"] = record.reachable;
  json["reload"] = record.reload;
  json["attempts"] = record.attempts;
  add(json, record.commit);
  return json;
}

OrderedJson to_json(const RolloutRecord& record) {
  return {{"id", record.id},
          {"run", record.run},
          {"version", record.version},
          {"digest", record.digest},
          {"proven", record.proven},
          {"unproven", record.unproven},
          {"left", record.left},
          {"idle", record.idle},
          {"stage_ms", record.stage_ms},
          {"commit_ms", record.commit_ms}};
}

OrderedJson to_json(const EndRecord& record) {
  OrderedJson json = begin(record.origin, record.run);
  json["event"] = record.event;
  if (!record.id.empty()) json["id"] = record.id;
  json["version"] = record.version;
  json["digest"] = record.digest;
  return json;
}

std::string to_text(const ReportProof& proof) {
  std::string text = proof.digest;
  if (proof.unproven > 0) text += concat(kUnproven, proof.unproven);
  if (!proof.run.empty()) text += concat(kProofRun, proof.run);
  if (!proof.timed) return text;
  std::array<char, 96> times{};
  std::snprintf(times.data(), times.size(), " stage_ms=%.3f commit_ms=%.3f", proof.stage_ms,
                proof.commit_ms);
  return text + times.data();
}

ReportProof parse_proof(std::string_view proof) {
  constexpr std::string_view kStageMs = " stage_ms=";
  constexpr std::size_t kDigits = 32;
  if (proof == kAnchorWanted) return {};
  const std::size_t run = proof.find(kProofRun);
  return {std::string(proof.substr(0, kDigits)),
          run == std::string_view::npos
              ? std::string()
              : std::string(proof.substr(run + kProofRun.size(), kDigits)),
          static_cast<std::uint64_t>(std::clamp(number_after(proof, kUnproven), 0.0, 1e9)),
          proof.find(kStageMs) != std::string_view::npos,
          number_after(proof, kStageMs),
          number_after(proof, " commit_ms=")};
}

std::string reported_run(std::string_view proof, std::string_view needs) {
  std::string run = parse_proof(proof).run;
  if (!run.empty() || needs.empty()) return run;
  const Result<ReceiverNeeds> needs_read = parse_needs(needs, "a report");
  return needs_read.ok() && !needs_read->run.is_zero() ? to_hex(needs_read->run) : run;
}

bool reports_idle(std::string_view needs) {
  if (needs.empty()) return false;
  const Result<ReceiverNeeds> needs_read = parse_needs(needs, "a report");
  return needs_read.ok() && needs_read->idle;
}

}  // namespace driftless
