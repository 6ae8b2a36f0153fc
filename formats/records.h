// SPDX-License-Identifier: Apache-2.0
// VersionRecord and EngineRecord: what one process did for one version, and how one update of one
// engine went. metrics.file, the JSON lines of the commands and the C library's metrics are views
// of them. docs/operate/metrics.md describes every key.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/status.h"
#include "formats/encoding.h"

namespace driftless {

// Which process wrote a record, and when.
struct RecordOrigin {
  std::string_view role;  // "trainer", "rollout" or "agent"
  unsigned rank = 0;
  std::string host;
  std::string time;         // UTC: "2026-01-31T12:00:00.250Z"
  double monotonic_ms = 0;  // of this machine's monotonic clock
};
// This host, now.
[[nodiscard]] RecordOrigin record_origin(std::string_view role, unsigned rank);

// How long the phases of a commit took.
struct CommitTimes {
  double stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
};

struct VersionRecord {
  RecordOrigin origin;
  Hash128 run;
  std::uint64_t version = 0, base_version = 0;
  std::uint64_t versions = 1;  // folded into this one step
  bool anchor = false;
  Digest digest;
  std::uint64_t changed_units = 0;
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;

  struct Published {  // by a trainer
    Encoding encoding = Encoding::kDeltas;
    double density = 0;
    double process_ms = 0, manifest_publish_ms = 0, total_ms = 0;
  };
  struct Captured {  // by a trainer without a snapshot
    std::uint64_t captured_bytes = 0, resent_tensors = 0;
    double capture_ms = 0, sweep_ms = 0, step_ms = 0;
  };
  struct Received {  // by a rollout
    std::uint64_t needed_bytes = 0;
    double fetch_ms = 0;
    CommitTimes commit;
  };
  struct Delivered {  // by an agent
    std::uint64_t needed_bytes = 0, plain_bytes = 0;
    double fetch_ms = 0, process_ms = 0, apply_ms = 0;
  };
  std::optional<Published> published{};
  std::optional<Captured> captured{};
  std::optional<Received> received{};
  std::optional<Delivered> delivered{};
};

struct EngineRecord {
  RecordOrigin origin;
  Hash128 run;
  std::string engine;         // its URL
  std::uint64_t version = 0;  // that it holds; if the update failed, the one before
  std::uint64_t goal = 0;     // that it was to be brought to
  std::string digest;         // of the version, hex; empty: not known
  Status status;
  unsigned attempts = 0;
  CommitTimes commit;  // of the last attempt
};

[[nodiscard]] nlohmann::ordered_json to_json(const VersionRecord& record);
[[nodiscard]] nlohmann::ordered_json to_json(const EngineRecord& record);

}  // namespace driftless
