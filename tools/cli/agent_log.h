// SPDX-License-Identifier: Apache-2.0
// What `driftless agent` shows: a line per version and engine, metrics, a summary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/digest.h"
#include "plugin/agent/delivery.h"
#include "plugin/engines/engine_fleet.h"
#include "plugin/job/metrics.h"

namespace driftless::cli {

class AgentLog {
 public:
  AgentLog(bool json, bool verbose, std::string id, unsigned rank)
      : json_(json), verbose_(verbose), id_(std::move(id)), rank_(rank) {}

  [[nodiscard]] Status write_metrics(const std::string& path);
  void delivered(const DeliveryReport& delivery);
  // A failure goes to stderr.
  void updated(const EngineUpdate& update);
  void ended(std::uint64_t version, const std::optional<Digest>& digest,
             const std::vector<EngineState>& engines, std::size_t workers) const;

  // Of the last update of an engine, or, without engines, of the last hand-over.
  [[nodiscard]] double stage_ms() const { return stage_ms_; }
  [[nodiscard]] double commit_ms() const { return commit_ms_; }

 private:
  void write(const MetricsLine& line);
  void tell(const Status& status) const;

  bool json_, verbose_;
  std::string id_;
  unsigned rank_;
  std::optional<MetricsWriter> metrics_;
  double stage_ms_ = 0, commit_ms_ = 0;
  std::uint64_t versions_ = 0, anchors_ = 0, wire_bytes_ = 0, plain_bytes_ = 0;
};

}  // namespace driftless::cli
