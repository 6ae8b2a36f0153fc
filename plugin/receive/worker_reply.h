// SPDX-License-Identifier: Apache-2.0
// WorkerReply: the reply of a worker, one rank of an engine, to every call. plugin/engines reads it
// as JSON (rank_reply.h):
//
//   {"nonce", "rank", "process", "ok", "error", "state", "version", "staged_version", "run",
//    "digest", "follows", "waits", "ways": {way: tensors}, "timings": {name: ms}, "moved": [text]}
//
// `run`, `version` and `digest` together identify the weights. "" means unknown: a base belongs to
// no run, and a rank that holds only some of the tensors has no digest to compare.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/version.h"
#include "formats/strict_json.h"

namespace driftless {

enum class WorkerState : unsigned char {
  kClosed,  // there is no receiver
  kIdle,
  kStaging,  // a thread fetches and stages
  kStaged,
  kCommitted,  // the last commit can be taken back
  kFailed,     // the last staging or commit failed; the weights are those of `version`
};
[[nodiscard]] std::string_view to_string(WorkerState state);

struct WorkerReply {
  std::string nonce;  // of the call
  std::int64_t rank = 0;
  // Of this call; if that succeeded, of an earlier one whose error is repeated (worker.h).
  std::optional<std::string> error;
  WorkerState state = WorkerState::kClosed;
  std::int64_t version = 0;  // of the weights; kTornVersion: they are parts of two versions
  std::optional<std::uint64_t> staged_version;
  std::string run, digest;  // of the weights, in hexadecimal
  std::string follows;      // the run that the receiver follows
  std::string waits;        // why the last staging found nothing
  std::map<std::string, std::uint64_t> ways;
  std::map<std::string, double> timings;
  std::vector<std::string> moved;  // the moves found by the last stage(), sweep or read()
};

// `beside`: an object whose members are added to the reply's own.
[[nodiscard]] std::string reply_json(const WorkerReply& reply, const Json& beside);
[[nodiscard]] std::string reply_json(const WorkerReply& reply);
// Identifies this process: random, and different in a forked process.
[[nodiscard]] std::string worker_process();

}  // namespace driftless
