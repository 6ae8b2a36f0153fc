// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "core/line_log.h"
#include "plugin/agent/agent.h"
#include "tools/cli/commands.h"
#include "tools/cli/job.h"

namespace driftless::cli {
namespace {

// An agent's output while it runs: with --verbose its actions; failures go to stderr.
class AgentLog {
 public:
  AgentLog(bool json, bool verbose, std::string id, unsigned rank)
      : json_(json), verbose_(verbose), id_(std::move(id)), rank_(rank) {}

  static void log(const Status& status) {
    if (!status.ok()) process_log().warning(status.to_string());
  }

  void delivered(const VersionRecord& record) {
    const VersionRecord::Delivered& delivered = *record.delivered;
    versions_ += record.anchor ? 0 : record.versions;
    anchors_ += record.anchor ? 1 : 0;
    wire_bytes_ += record.wire_bytes;
    plain_bytes_ += delivered.plain_bytes;
    print(to_json(record),
          concat("version ", record.version, record.anchor ? " (anchor)" : "", ", wire_bytes ",
                 record.wire_bytes, ", fetch_ms ", fixed(delivered.fetch_ms, 1), ", process_ms ",
                 fixed(delivered.process_ms, 1), ", apply_ms ", fixed(delivered.apply_ms, 1)));
  }

  void updated(const EngineRecord& record) {
    const CommitTimes& times = record.commit;
    print(to_json(record),
          concat("engine ", record.engine, ", version ", record.version, ", stage_ms ",
                 fixed(times.stage_ms, 1), ", pause_ms ", fixed(times.pause_ms, 1), ", apply_ms ",
                 fixed(times.apply_ms, 1), ", resume_ms ", fixed(times.resume_ms, 1), ", attempts ",
                 record.attempts));
  }

  void ended(const AgentEnd& end) const {
    if (json_) {
      nlohmann::ordered_json json =
          to_json(EndRecord{record_origin("agent", rank_), end.run, "agent", id_, end.version,
                            end.digest ? to_hex(*end.digest) : ""});
      json["versions"] = versions_;
      json["anchors"] = anchors_;
      json["wire_bytes"] = wire_bytes_;
      json["plain_bytes"] = plain_bytes_;
      json["workers"] = end.workers;
      json["engines"] = nlohmann::ordered_json::array();
      for (const EngineRecord& engine : end.engines) json["engines"].push_back(to_json(engine));
      return print_json(json);
    }
    process_log().event(concat("ended at version ", end.version, ", versions ", versions_,
                               ", anchors ", anchors_, ", wire_bytes ", wire_bytes_, ", workers ",
                               end.workers));
    for (const EngineRecord& engine : end.engines) {
      process_log().event(concat("engine ", engine.engine, ", version ", engine.version,
                                 ", status ", to_string(engine.status.code()),
                                 engine.status.ok() ? "" : ": ", engine.status.message()));
    }
  }

 private:
  void print(const nlohmann::ordered_json& line, const std::string& text) const {
    if (verbose_ && json_) print_json(line);
    if (verbose_ && !json_) process_log().event(text);
  }

  bool json_, verbose_;
  std::string id_;
  unsigned rank_;
  std::uint64_t versions_ = 0, anchors_ = 0, wire_bytes_ = 0, plain_bytes_ = 0;
};

Result<int> follow(const Common& common, const AgentArguments& arguments, const Config& config,
                   JobProcess& process) {
  AgentLog log(common.json, arguments.verbose, receiver_id(config, process, process.rank()),
               process.rank());
  AgentRunOptions options;
  options.base = arguments.base;
  options.once = arguments.once;
  options.stopped = [] { return StopSignals::received() != 0; };
  options.delivered = [&log](const VersionRecord& record) { log.delivered(record); };
  options.updated = [&log](const EngineRecord& record) { log.updated(record); };
  options.failed = [&log](const Status& status) { log.log(status); };
  Agent agent(config, process, std::move(options));
  if (const Status opened = agent.open(); !opened.ok()) {
    const int signal = StopSignals::received();
    return signal != 0 ? Result<int>(128 + signal) : opened;
  }
  bool over = false;
  while (!over && StopSignals::received() == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(over, agent.step());
  }
  const bool stopped = StopSignals::received() != 0 && !agent.run_has_ended();
  const AgentEnd end = agent.end(!stopped);
  log.ended(end);
  DRIFTLESS_RETURN_IF_ERROR(
      process.close(Deadline::after(stopped ? kStopWait : config.connect_deadline)));
  DRIFTLESS_RETURN_IF_ERROR(end.digests);
  if (stopped) return 128 + StopSignals::received();
  if (end.all_have_it) return int{kExitOk};
  report_line(error(StatusCode::kIncomplete,
                    "not every worker and engine on this host ended at version ", end.version,
                    end.lagging));
  return int{kExitDifferent};
}

}  // namespace

Result<int> run_agent(const Common& common, const AgentArguments& arguments) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments.job));
  DRIFTLESS_RETURN_IF_ERROR(check_agent_config(config));
  return run_in_job(common, config, JobRole::kRollout, "agent", {}, [&](const auto& process) {
    return follow(common, arguments, config, *process);
  });
}

}  // namespace driftless::cli
