// SPDX-License-Identifier: Apache-2.0
#include "formats/record_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/version.h"

namespace driftless {
namespace {

constexpr std::size_t kMostTextBytes = 64 << 10;
constexpr double kMostNumber = 1e18;  // for milliseconds and ratios

// Reads the members of one object, and remembers the first error.
class Fields {
 public:
  Fields(const Json& json, std::string_view what) : json_(json), what_(what) {
    if (!json.is_object()) fail("", "not a JSON object");
  }

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool has(const char* key) const { return json_.is_object() && json_.contains(key); }

  void read(const char* key, std::uint64_t& value) {
    const Json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_number_unsigned()) return fail(key, "expected a whole number");
    value = found->get<std::uint64_t>();
    if (value > kMaxVersion) fail(key, "too large");  // for a version, a count and a size
  }
  void read(const char* key, unsigned& value) {
    std::uint64_t wide = value;
    read(key, wide);
    if (wide > std::numeric_limits<unsigned>::max()) return fail(key, "too large");
    value = static_cast<unsigned>(wide);
  }
  void read(const char* key, double& value) {
    const Json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_number()) return fail(key, "expected a number");
    value = found->get<double>();
    if (!(value >= 0 && value <= kMostNumber)) fail(key, "out of range");
  }
  void read(const char* key, bool& value) {
    const Json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) return fail(key, "expected true or false");
    value = found->get<bool>();
  }
  void read(const char* key, std::string& value) {
    const Json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_string()) return fail(key, "expected a text");
    value = found->get_ref<const std::string&>();
    if (value.size() > kMostTextBytes) fail(key, "too long");
  }
  // One of `known`, which are static; the last of them for an unknown value.
  void read(const char* key, std::string_view& value, std::span<const std::string_view> known) {
    std::string text;
    read(key, text);
    const auto same = std::ranges::find(known, text);
    value = same == known.end() ? known.back() : *same;
  }
  template <typename Hash>
  void read_hex(const char* key, Hash& value, Result<Hash> (*parse)(std::string_view)) {
    std::string text;
    read(key, text);
    if (text.empty()) return;
    const Result<Hash> parsed = parse(text);
    if (!parsed.ok()) return fail(key, parsed.status().message());
    value = *parsed;
  }
  template <typename Object>
  void read_list(const char* key, std::size_t most, std::vector<Object>& list,
                 Result<Object> (*read_one)(const Json&, std::string_view)) {
    const Json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_array() || found->size() > most) return fail(key, "expected a list");
    for (const Json& each : *found) {
      Result<Object> one = read_one(each, what_);
      if (!one.ok()) return fail(key, one.status().message());
      list.push_back(std::move(*one));
    }
  }
  void fail(std::string_view key, std::string_view why) {
    if (status_.ok()) status_ = error(StatusCode::kCorrupt, what_, ": ", key, ": ", why);
  }

 private:
  const Json* find(const char* key) {
    if (!has(key)) return nullptr;
    const Json& found = json_[key];
    return found.is_null() ? nullptr : &found;
  }

  const Json& json_;
  std::string_view what_;
  Status status_;
};

void read(Fields& fields, RecordOrigin& origin, Hash128& run) {
  static constexpr std::string_view kRoles[] = {"trainer", "rollout", "agent", "status", ""};
  fields.read("role", origin.role, kRoles);
  fields.read("rank", origin.rank);
  fields.read("host", origin.host);
  fields.read("time", origin.time);
  fields.read("monotonic_ms", origin.monotonic_ms);
  fields.read("id", origin.id);
  fields.read_hex("run", run, hash128_from_hex);
}

void read(Fields& fields, CommitTimes& commit) {
  fields.read("stage_ms", commit.stage_ms);
  fields.read("pause_ms", commit.pause_ms);
  fields.read("apply_ms", commit.apply_ms);
  fields.read("resume_ms", commit.resume_ms);
}

VersionRecord::Published read_published(Fields& fields) {
  VersionRecord::Published published;
  std::string name;
  fields.read("encoding", name);
  const Result<Encoding> encoding = parse_encoding(name);
  if (encoding.ok()) {
    published.encoding = *encoding;
  } else {
    fields.fail("encoding", encoding.status().message());
  }
  fields.read("density", published.density);
  fields.read("compare_ms", published.compare_ms);
  fields.read("encode_ms", published.encode_ms);
  fields.read("send_ms", published.send_ms);
  fields.read("seal_ms", published.seal_ms);
  fields.read("process_ms", published.process_ms);
  fields.read("manifest_publish_ms", published.manifest_publish_ms);
  fields.read("total_ms", published.total_ms);
  return published;
}

VersionRecord::Captured read_captured(Fields& fields) {
  VersionRecord::Captured captured;
  fields.read("captured_bytes", captured.captured_bytes);
  fields.read("resent_tensors", captured.resent_tensors);
  fields.read("capture_ms", captured.capture_ms);
  fields.read("sweep_ms", captured.sweep_ms);
  fields.read("step_ms", captured.step_ms);
  return captured;
}

Result<TensorDensity> read_density(const Json& json, std::string_view what) {
  TensorDensity density;
  Fields fields(json, what);
  fields.read("tensor", density.tensor);
  fields.read("changed_units", density.changed_units);
  fields.read("total_units", density.total_units);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return density;
}

Result<Digest> read_digest(std::string_view text) { return digest_from_hex(text); }

// The code with this name; kInternal if there is none.
StatusCode code_of(std::string_view name) {
  for (auto code = StatusCode::kOk; code < StatusCode::kInternal;
       code = static_cast<StatusCode>(static_cast<unsigned char>(code) + 1)) {
    if (to_string(code) == name) return code;
  }
  return StatusCode::kInternal;
}

}  // namespace

Result<RecordOrigin> read_origin(const Json& json, Hash128& run, std::string_view what) {
  RecordOrigin origin;
  Fields fields(json, what);
  read(fields, origin, run);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return origin;
}

Result<VersionRecord> read_version_record(const Json& json, std::string_view what) {
  VersionRecord record;
  Fields fields(json, what);
  read(fields, record.origin, record.run);
  fields.read("version", record.version);
  fields.read("base_version", record.base_version);
  fields.read("versions", record.versions);
  fields.read("anchor", record.anchor);
  fields.read_hex("digest", record.digest, read_digest);
  fields.read("changed_units", record.changed_units);
  fields.read("full_bytes", record.full_bytes);
  fields.read("delta_bytes", record.delta_bytes);
  fields.read("wire_bytes", record.wire_bytes);
  fields.read("fallback", record.fallback);
  fields.read_list("most_changed", kMostChangedTensors, record.most_changed, read_density);
  if (fields.has("encoding")) record.published = read_published(fields);
  if (fields.has("captured_bytes")) record.captured = read_captured(fields);
  if (fields.has("plain_bytes")) {
    VersionRecord::Delivered& delivered = record.delivered.emplace();
    fields.read("needed_bytes", delivered.needed_bytes);
    fields.read("plain_bytes", delivered.plain_bytes);
    fields.read("fetch_ms", delivered.fetch_ms);
    fields.read("process_ms", delivered.process_ms);
    fields.read("apply_ms", delivered.apply_ms);
    fields.read("carrier", delivered.carrier);
  } else if (fields.has("resume_ms")) {
    VersionRecord::Received& received = record.received.emplace();
    fields.read("needed_bytes", received.needed_bytes);
    fields.read("fetch_ms", received.fetch_ms);
    read(fields, received.commit);
    fields.read("carrier", received.carrier);
  }
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return record;
}

Result<EngineRecord> read_engine_record(const Json& json, std::string_view what) {
  static constexpr std::string_view kKinds[] = {"vllm", "sglang", ""};
  static constexpr std::string_view kProofs[] = {"workers", "files", ""};
  EngineRecord record;
  Fields fields(json, what);
  read(fields, record.origin, record.run);
  fields.read("engine", record.engine);
  fields.read("kind", record.kind, kKinds);
  fields.read("version", record.version);
  fields.read("goal", record.goal);
  fields.read("digest", record.digest);
  fields.read("proven", record.proven, kProofs);
  std::string code = "ok", message;
  fields.read("status", code);
  fields.read("error", message);
  if (const StatusCode named = code_of(code); named != StatusCode::kOk) {
    record.status = Status(named, message);
  }
  fields.read("reachable", record.reachable);
  fields.read("reload", record.reload);
  fields.read("attempts", record.attempts);
  read(fields, record.commit);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return record;
}

Result<RolloutRecord> read_rollout_record(const Json& json, std::string_view what) {
  RolloutRecord record;
  Fields fields(json, what);
  fields.read("id", record.id);
  fields.read("run", record.run);
  fields.read("version", record.version);
  fields.read("digest", record.digest);
  fields.read("proven", record.proven);
  fields.read("unproven", record.unproven);
  fields.read("left", record.left);
  fields.read("idle", record.idle);
  fields.read("stage_ms", record.stage_ms);
  fields.read("commit_ms", record.commit_ms);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return record;
}

Result<EndRecord> read_end_record(const Json& json, std::string_view what) {
  static constexpr std::string_view kEvents[] = {"rollout", "agent", "summary", ""};
  EndRecord record;
  Fields fields(json, what);
  read(fields, record.origin, record.run);
  fields.read("event", record.event, kEvents);
  fields.read("id", record.id);
  record.origin.id.clear();  // the id here is the receiver's, not the writer's
  fields.read("version", record.version);
  fields.read("digest", record.digest);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  return record;
}

}  // namespace driftless
