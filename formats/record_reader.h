// SPDX-License-Identifier: Apache-2.0
// Reads records from their JSON form: lines of metrics.file, the JSON of a status server. Ignores
// unknown keys; a missing key leaves the default. kCorrupt, naming `what` and the key, for a value
// of another type. Include <nlohmann/json.hpp> in the .cpp file.
#pragma once

#include "formats/records.h"
#include "formats/strict_json.h"

namespace driftless {

[[nodiscard]] Result<VersionRecord> read_version_record(const Json& json, std::string_view what);
[[nodiscard]] Result<EngineRecord> read_engine_record(const Json& json, std::string_view what);
[[nodiscard]] Result<RolloutRecord> read_rollout_record(const Json& json, std::string_view what);
[[nodiscard]] Result<EndRecord> read_end_record(const Json& json, std::string_view what);
// Reads the fields that every line begins with, and the run.
[[nodiscard]] Result<RecordOrigin> read_origin(const Json& json, Hash128& run,
                                               std::string_view what);

}  // namespace driftless
