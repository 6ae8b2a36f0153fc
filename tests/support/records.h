// SPDX-License-Identifier: Apache-2.0
// Records of a run as a publisher and an agent make them, with times and names that stay the same.
#pragma once

#include "formats/records.h"

namespace driftless::testing {

inline RecordOrigin origin(std::string_view role) {
  return {role, 0, "host-7", "2026-01-31T12:00:00.250Z", 1234.5};
}

inline VersionRecord published_version(std::uint64_t version) {
  VersionRecord record;
  record.origin = origin("trainer");
  record.run = {0x0123456789abcdef, 0xfedcba9876543210};
  record.version = version;
  record.base_version = version - 1;
  record.changed_units = 2'500;
  record.full_bytes = 200'000;
  record.delta_bytes = 6'000;
  record.wire_bytes = 7'000;
  record.published =
      VersionRecord::Published{Encoding::kDeltas, 0.025, 150, 50, 200, 120, 60, 30, 40};
  return record;
}

inline VersionRecord received_version(std::uint64_t version) {
  VersionRecord record = published_version(version);
  record.origin = origin("rollout");
  record.published.reset();
  record.received = VersionRecord::Received{6'500, 100, {20, 1, 2, 3}};
  return record;
}

inline VersionRecord delivered_version(std::uint64_t version) {
  VersionRecord record = published_version(version);
  record.origin = origin("agent");
  record.published.reset();
  record.delivered = VersionRecord::Delivered{6'500, 6'000, 80, 100, 0};
  return record;
}

inline EngineRecord engine_update(std::string engine, std::uint64_t version) {
  EngineRecord record;
  record.origin = origin("agent");
  record.run = published_version(version).run;
  record.engine = std::move(engine);
  record.kind = "vllm";
  record.version = record.confirmed = record.goal = version;
  record.proven = "workers";
  record.attempts = 1;
  record.commit = {30, 10, 5, 2};
  return record;
}

inline EngineRecord failed_update(std::string engine, std::uint64_t goal) {
  EngineRecord record = engine_update(std::move(engine), goal);
  record.version = record.confirmed = goal - 1;
  record.proven = "";
  record.status = error(StatusCode::kMismatch, "worker 1 reported another digest");
  return record;
}

inline RolloutRecord rollout_at(std::string id, std::uint64_t version) {
  RolloutRecord record;
  record.id = std::move(id);
  record.version = version;
  record.proven = true;
  return record;
}

}  // namespace driftless::testing
