// SPDX-License-Identifier: Apache-2.0
// Which version a local checkpoint directory holds: <checkpoint>/.weight_sync/state.json.
//
// The file and the lock beside it are the ones that other tools of the hf_delta family use; they
// read "version" and pass over our further keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/digest.h"
#include "core/file_system.h"
#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

inline constexpr std::string_view kSyncDirectory = ".weight_sync";

struct CheckpointState {
  std::uint64_t version = 0;
  Hash128 run;                   // zero: unknown (no version of ours was applied yet)
  Hash128 layout;                // zero: unknown
  std::optional<Digest> digest;  // of all weights, where known

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

[[nodiscard]] std::string sync_path(const std::string& checkpoint, std::string_view name);
[[nodiscard]] std::string state_to_json(const CheckpointState& state);
[[nodiscard]] Result<CheckpointState> parse_state(std::string_view text, std::string_view what);
// A checkpoint without a state file is version 0 of an unknown run.
[[nodiscard]] Result<CheckpointState> load_state(FileSystem& fs, const std::string& checkpoint);
// Replaces the state file; durable once it returns ok.
[[nodiscard]] Status save_state(FileSystem& fs, const std::string& checkpoint,
                                const CheckpointState& state);
// kBusy if an interrupted apply left a journal: the weights may be between two versions.
[[nodiscard]] Status check_no_journal(FileSystem& fs, const std::string& checkpoint);

}  // namespace driftless
