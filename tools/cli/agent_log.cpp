// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/agent_log.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "tools/cli/console.h"

namespace driftless::cli {

Status AgentLog::write_metrics(const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(MetricsWriter metrics, MetricsWriter::open(path));
  metrics_.emplace(std::move(metrics));
  return {};
}

void AgentLog::tell(const Status& status) const {
  if (!status.ok()) std::cerr << concat("driftless: ", id_, ": ", status.to_string(), "\n");
}

void AgentLog::write(const MetricsLine& line) {
  if (metrics_) tell(metrics_->write(line));
  if (verbose_ && json_) std::cout << metrics_json(line) << "\n" << std::flush;
}

void AgentLog::delivered(const DeliveryReport& delivery) {
  const UpdateReport& report = delivery.update;
  versions_ += report.anchor ? 0 : report.versions;
  anchors_ += report.anchor ? 1 : 0;
  wire_bytes_ += report.wire_bytes;
  plain_bytes_ += delivery.plain_bytes;
  stage_ms_ = delivery.process_ms;
  commit_ms_ = report.apply_ms;
  MetricsLine line = metrics_of(report, rank_);
  line.role = "agent";
  line.stage_ms = line.pause_ms = line.resume_ms = std::nullopt;  // an engine's
  line.process_ms = delivery.process_ms;
  line.plain_bytes = delivery.plain_bytes;
  write(line);
  if (!verbose_ || json_) return;
  std::cout << concat(id_, ": version ", report.version, report.anchor ? " (anchor)" : "", ", ",
                      human_bytes(report.wire_bytes), " fetched in ", fixed(report.fetch_ms, 1),
                      " ms, handed over in ", fixed(delivery.process_ms + report.apply_ms, 1),
                      " ms\n")
            << std::flush;
}

void AgentLog::updated(const EngineUpdate& update) {
  const EngineTimes& times = update.times;
  if (!update.status.ok()) {
    tell(update.status.with_context(concat("engine ", update.url, " did not take version ",
                                           update.goal, " after ", update.attempts, " tries")));
    return;
  }
  stage_ms_ = times.stage_ms;
  commit_ms_ = times.pause_ms + times.apply_ms + times.resume_ms;
  MetricsLine line;
  line.role = "agent";
  line.rank = rank_;
  line.monotonic_ms = monotonic_ms();
  line.version = update.version;
  line.engine = update.url;
  line.stage_ms = times.stage_ms;
  line.pause_ms = times.pause_ms;
  line.apply_ms = times.apply_ms;
  line.resume_ms = times.resume_ms;
  write(line);
  if (!verbose_ || json_) return;
  std::cout << concat(id_, ": ", update.url, " at version ", update.version, ", stage ",
                      fixed(times.stage_ms, 1), " ms, pause ", fixed(times.pause_ms, 1),
                      " ms, apply ", fixed(times.apply_ms, 1), " ms, resume ",
                      fixed(times.resume_ms, 1), " ms, tries ", update.attempts, "\n")
            << std::flush;
}

void AgentLog::ended(std::uint64_t version, const std::optional<Digest>& digest,
                     const std::vector<EngineState>& engines, std::size_t workers) const {
  if (json_) {
    nlohmann::ordered_json json;
    json["event"] = "agent";
    json["id"] = id_;
    json["version"] = version;
    json["digest"] = digest ? to_hex(*digest) : "";
    json["versions"] = versions_;
    json["anchors"] = anchors_;
    json["wire_bytes"] = wire_bytes_;
    json["plain_bytes"] = plain_bytes_;
    json["workers"] = workers;
    json["engines"] = nlohmann::ordered_json::array();
    for (const EngineState& engine : engines) {
      json["engines"].push_back({{"url", engine.url},
                                 {"version", engine.version},
                                 {"status", std::string(to_string(engine.status.code()))}});
    }
    print_json(json);
    std::cout.flush();
    return;
  }
  std::cout << concat(id_, ": ended at version ", version, ", ", versions_, " versions and ",
                      anchors_, " anchors handed over, ", human_bytes(wire_bytes_), " fetched, ",
                      workers, " workers\n");
  for (const EngineState& engine : engines) {
    std::cout << concat(id_, ": ", engine.url, " at version ", engine.version,
                        engine.status.ok() ? "" : ", failed: ", engine.status.message(), "\n");
  }
  std::cout.flush();
}

}  // namespace driftless::cli
