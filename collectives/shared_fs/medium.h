// SPDX-License-Identifier: Apache-2.0
// The directory that both sides of the shared_fs road share: the names in it, and how to read it.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless::shared_fs {

// Names in <dir>. formats/version_dir.cpp uses the same name for its lock: a single version written
// by hand and a run exclude each other.
inline constexpr std::string_view kLockName = ".driftless-publisher.lock";
inline constexpr std::uint64_t kMaxLockBytes = 4096;
inline constexpr std::string_view kRunName = "run.json";
inline constexpr std::string_view kReceiversName = ".receivers";
// Names in the directory of a publication, beside its parts.
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kDoneName = "DONE";

inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMaxRunInfoBytes = std::uint64_t{256} << 20;

// kInvalidArgument if an option cannot work.
[[nodiscard]] Status check_options(const SharedFsOptions& options);

// The content of the lock file: the session of 32 digits (empty: none), and its owner, "process
// 4711 on trainer-0".
[[nodiscard]] std::string session_in(const std::string& lock);
[[nodiscard]] std::string owner_in(const std::string& lock);

// "weight_v000007", "anchor_v000007", and back.
[[nodiscard]] std::string publication_name(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_publication_name(std::string_view name);

// ".used_v000007", an empty file: version 7 may have been visible. The highest counts.
[[nodiscard]] std::string used_name(std::uint64_t version);
[[nodiscard]] std::optional<std::uint64_t> parse_used_name(std::string_view name);

// ".weight_v000007.<session>.<token>.tmp" with a new token, so that a process that still writes
// into the directory of an earlier attempt, or of another publisher, does not write into this one.
[[nodiscard]] std::string new_hidden_name(const PublicationId& id, std::string_view session);
[[nodiscard]] bool is_hidden_name_of(const PublicationId& id, std::string_view session,
                                     std::string_view name);
// ".run.<session>.tmp": the announcement, being written.
[[nodiscard]] std::string hidden_run_name(std::string_view session);
// Whether the name is that of a publication's directory while it is written or removed, or that of
// an announcement while it is written.
[[nodiscard]] bool is_leftover(std::string_view name);
[[nodiscard]] bool is_dropped(std::string_view name);

// Moves <dir>/<name> away at once, even if a process is writing in it: returns its new name, under
// which remove_dropped() removes it. Empty if it did not exist.
[[nodiscard]] Result<std::string> drop(FileSystem& fs, const std::string& dir,
                                       const std::string& name);
// Removes as much as possible: the rest stays hidden, and the next leader tries again.
void remove_dropped(FileSystem& fs, const std::string& dir, const std::string& name);

// The content of DONE.
[[nodiscard]] std::string done_text(std::string_view manifest);

// Reads a small file without mapping it, because an I/O error in a mapping ends the process.
// kNotFound; kCorrupt if it is longer than `max_bytes` or ends early.
[[nodiscard]] Result<std::string> read_small(FileSystem& fs, const std::string& path,
                                             std::uint64_t max_bytes);

}  // namespace driftless::shared_fs
