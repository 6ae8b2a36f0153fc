// SPDX-License-Identifier: Apache-2.0
// The records: what one process did for one version (VersionRecord), the result of one update of
// one engine (EngineRecord), how a process ended (EndRecord), and what a receiver reports to the
// trainer (ReportProof). metrics.file, the JSON lines of the commands, reports and the C library's
// metrics are views of them. docs/operate/metrics.md describes every key.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/status.h"
#include "formats/encoding.h"

namespace driftless {

// The process that wrote a record, and the time.
struct RecordOrigin {
  std::string_view role;  // "trainer", "rollout", "agent"; "status": the command
  unsigned rank = 0;
  std::string host;
  std::string time;         // UTC: "2026-01-31T12:00:00.250Z"
  double monotonic_ms = 0;  // of this machine's monotonic clock
  std::string id{};         // the receiver's id on the road; empty: no receiver
};
// The origin of a record of this host about something that was done at `done`.
[[nodiscard]] RecordOrigin record_origin(
    std::string_view role, unsigned rank,
    std::chrono::steady_clock::time_point done = std::chrono::steady_clock::now());

// A record's time as milliseconds since 1970; empty if the text is not a time.
[[nodiscard]] std::optional<std::int64_t> unix_ms(std::string_view time);

// The durations of a commit's phases.
struct CommitTimes {
  double stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
};

// How much of one tensor a version changed.
struct TensorDensity {
  std::string tensor;
  std::uint64_t changed_units = 0, total_units = 0;
};
inline constexpr std::size_t kMostChangedTensors = 16;  // of a record

struct VersionRecord {
  RecordOrigin origin;
  Hash128 run;
  std::uint64_t version = 0, base_version = 0;
  std::uint64_t versions = 1;  // folded into this one commit
  bool anchor = false;
  Digest digest;
  std::uint64_t changed_units = 0;
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // The fallback road that carried the version because the configured road had failed; empty: the
  // configured road carried it.
  std::string fallback{};
  // The tensors with the most changed weights, largest first; empty if this process does not know
  // them.
  std::vector<TensorDensity> most_changed{};

  struct Published {  // by a trainer
    Encoding encoding = Encoding::kDeltas;
    double density = 0;
    double process_ms = 0, manifest_publish_ms = 0, total_ms = 0;
    // Busy times of this rank. The first three overlap, and are part of process_ms.
    double compare_ms = 0, encode_ms = 0, send_ms = 0, seal_ms = 0;
  };
  struct Captured {  // by a trainer without a snapshot
    std::uint64_t captured_bytes = 0, resent_tensors = 0;
    double capture_ms = 0, sweep_ms = 0, step_ms = 0;
  };
  struct Received {  // by a rollout
    std::uint64_t needed_bytes = 0;
    double fetch_ms = 0;
    CommitTimes commit;
    std::string carrier{};  // UpdateReport::carrier
  };
  struct Delivered {  // by an agent
    std::uint64_t needed_bytes = 0, plain_bytes = 0;
    double fetch_ms = 0, process_ms = 0, apply_ms = 0;
    std::string carrier{};
  };
  std::optional<Published> published{};
  std::optional<Captured> captured{};
  std::optional<Received> received{};
  std::optional<Delivered> delivered{};
};

struct EngineRecord {
  RecordOrigin origin{};
  Hash128 run{};
  std::string engine;       // its URL
  std::string_view kind{};  // "vllm" or "sglang"
  // The version that it holds; after a failed update the one before; 0: none yet, or unknown.
  std::uint64_t version = 0;
  std::uint64_t confirmed = 0;  // the last confirmed version, even if the current one is unknown
  std::uint64_t goal = 0;       // the version that the update should reach
  std::string digest{};         // of the version, hex; empty: unknown
  std::string_view proven{};    // by its "workers" or by the "files" that it loaded, or empty
  Status status{};        // of the last update or query; not ok: the engine does not count as ready
  bool reachable = true;  // false: it has answered no call for some time
  bool reload = false;    // it lost its version and must receive it again
  unsigned attempts = 0;  // of the last update; 0: the record comes from a query, not an update
  CommitTimes commit{};   // of the last attempt
  // True if the agent wrote the record after it queried the engine, without an update.
  [[nodiscard]] bool looked() const { return attempts == 0 && !kind.empty(); }
  // True if no process waits for the engine any more: it does not answer, or an update failed.
  [[nodiscard]] bool given_up() const { return !reachable || (!status.ok() && attempts > 0); }
};

// The last report of a receiver to the trainer.
struct RolloutRecord {
  std::string id;              // of the receiver
  std::string run;             // hex; empty: the report names none
  std::uint64_t version = 0;   // the version that it holds
  std::string digest;          // as reported, hex; empty: none, or nothing to compare it with
  bool proven = false;         // the digest covers all tensors, and is that of the version
  std::uint64_t unproven = 0;  // tensors that the digest does not include
  bool left = false;           // it has signed off
  bool idle = false;           // an agent on whose host no engine or worker takes versions
  double stage_ms = 0, commit_ms = 0;  // of its last commit; 0: not known
};

// The last line that a command writes.
struct EndRecord {
  RecordOrigin origin;
  Hash128 run;
  std::string_view event;  // "rollout", "agent" or "summary"
  std::string id;          // the receiver's; empty: a trainer
  std::uint64_t version = 0;
  std::string digest;  // hex; empty: not known
};

// The proof in a receiver's report, as text: "<digest> unproven=2 run=<run> stage_ms=1.5
// commit_ms=0.2". A road carries it unread; the trainer shows it.
struct ReportProof {
  std::string digest;          // 32 digits; empty if it holds nothing
  std::string run;             // 32 digits; empty: not in it
  std::uint64_t unproven = 0;  // tensors that the digest does not include
  bool timed = false;          // it contains the times of the last commit
  double stage_ms = 0;         // including the fetch
  double commit_ms = 0;
};
// The proof that a receiver reports if it cannot follow the versions and finds no anchor. The
// publisher then makes an anchor with its next version.
inline constexpr std::string_view kAnchorWanted = "anchor wanted";
inline constexpr std::string_view kUnproven = " unproven=";
inline constexpr std::string_view kProofRun = " run=";
[[nodiscard]] std::string to_text(const ReportProof& proof);
[[nodiscard]] ReportProof parse_proof(std::string_view proof);
// The run of a report: from its proof or, if the proof has none, from its needs. Empty if neither
// names it.
[[nodiscard]] std::string reported_run(std::string_view proof, std::string_view needs);
// Whether the report comes from an agent on whose host no engine or worker takes versions.
[[nodiscard]] bool reports_idle(std::string_view needs);

[[nodiscard]] nlohmann::ordered_json to_json(const VersionRecord& record);
[[nodiscard]] nlohmann::ordered_json to_json(const EngineRecord& record);
[[nodiscard]] nlohmann::ordered_json to_json(const RolloutRecord& record);
[[nodiscard]] nlohmann::ordered_json to_json(const EndRecord& record);

}  // namespace driftless
