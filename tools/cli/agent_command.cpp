// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/receiver_needs.h"
#include "plugin/agent/delivery.h"
#include "plugin/engines/engine_fleet.h"
#include "plugin/engines/engine_http.h"
#include "plugin/job/metrics.h"
#include "plugin/job/notified_engines.h"
#include "plugin/receive/receiver.h"
#include "plugin/receive/report_proof.h"
#include "plugin/receive/run_end.h"
#include "tools/cli/commands.h"
#include "tools/cli/job.h"
#include "tools/cli/rollout_weights.h"

namespace driftless::cli {
namespace {

constexpr auto kLookForDelivery = std::chrono::milliseconds(100);
constexpr auto kSignOfLife = std::chrono::seconds(1);

// What is worth another try. All else is a matter of the configuration or of another run.
bool may_pass(StatusCode code) {
  switch (code) {
    case StatusCode::kNotFound:
    case StatusCode::kIncomplete:
    case StatusCode::kCorrupt:
    case StatusCode::kBusy:
    case StatusCode::kIo:
    case StatusCode::kDeadlineExceeded: return true;
    default: return false;
  }
}

// What an agent says on the way: lines of metrics, and, with --verbose, what it did. A failure goes
// to stderr.
class AgentLog {
 public:
  AgentLog(bool json, bool verbose, std::string id, unsigned rank)
      : json_(json), verbose_(verbose), id_(std::move(id)), rank_(rank) {}

  [[nodiscard]] Status open(const std::string& metrics_file) {
    DRIFTLESS_ASSIGN_OR_RETURN(metrics_, MetricsWriter::open(metrics_file, "agent", rank_));
    return {};
  }

  void tell(const Status& status) const {
    if (!status.ok()) std::cerr << concat("driftless: ", id_, ": ", status.to_string(), "\n");
  }

  void delivered(const DeliveryReport& delivery) {
    const UpdateReport& report = delivery.update;
    versions_ += report.anchor ? 0 : report.versions;
    anchors_ += report.anchor ? 1 : 0;
    wire_bytes_ += report.wire_bytes;
    plain_bytes_ += delivery.plain_bytes;
    stage_ms_ = delivery.process_ms;
    commit_ms_ = report.apply_ms;
    nlohmann::ordered_json line = metrics_of(report, rank_);
    for (const char* engines : {"stage_ms", "pause_ms", "resume_ms"}) line.erase(engines);
    line["process_ms"] = delivery.process_ms;
    line["plain_bytes"] = delivery.plain_bytes;
    write(line,
          concat("version ", report.version, report.anchor ? " (anchor)" : "", ", ",
                 human_bytes(report.wire_bytes), " fetched in ", fixed(report.fetch_ms, 1),
                 " ms, handed over in ", fixed(delivery.process_ms + report.apply_ms, 1), " ms"));
    for (const std::string& note : report.notes) tell(Status(StatusCode::kIo, note));
  }

  void updated(const EngineUpdate& update) {
    const EngineTimes& times = update.times;
    if (!update.status.ok()) {
      return tell(
          update.status.with_context(concat("engine ", update.url, " did not take version ",
                                            update.goal, " after ", update.attempts, " tries")));
    }
    stage_ms_ = times.stage_ms;
    commit_ms_ = times.pause_ms + times.apply_ms + times.resume_ms;
    UpdateReport report;
    report.version = update.version;
    report.versions = 1;
    report.stage_ms = times.stage_ms;
    report.pause_ms = times.pause_ms;
    report.apply_ms = times.apply_ms;
    report.resume_ms = times.resume_ms;
    nlohmann::ordered_json line = metrics_of(report, rank_);
    line.erase("fetch_ms");  // the agent's
    line["digest"] = "";     // as is what was delivered
    line["engine"] = update.url;
    write(line,
          concat(update.url, " at version ", update.version, ", stage ", fixed(times.stage_ms, 1),
                 " ms, pause ", fixed(times.pause_ms, 1), " ms, apply ", fixed(times.apply_ms, 1),
                 " ms, resume ", fixed(times.resume_ms, 1), " ms, tries ", update.attempts));
  }

  void ended(std::uint64_t version, const std::optional<Digest>& digest,
             const std::vector<EngineState>& engines, std::size_t workers) const {
    if (json_) {
      nlohmann::ordered_json json = {
          {"event", "agent"},          {"id", id_},
          {"version", version},        {"digest", digest ? to_hex(*digest) : ""},
          {"versions", versions_},     {"anchors", anchors_},
          {"wire_bytes", wire_bytes_}, {"plain_bytes", plain_bytes_},
          {"workers", workers},        {"engines", nlohmann::ordered_json::array()}};
      for (const EngineState& engine : engines) {
        json["engines"].push_back({{"url", engine.url},
                                   {"version", engine.version},
                                   {"status", std::string(to_string(engine.status.code()))}});
      }
      return print_json(json);
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

  // Of the last update of an engine, or, without engines, of the last hand-over.
  [[nodiscard]] double stage_ms() const { return stage_ms_; }
  [[nodiscard]] double commit_ms() const { return commit_ms_; }

 private:
  void write(nlohmann::ordered_json& line, const std::string& text) {
    line["role"] = "agent";
    if (metrics_) tell(metrics_->write(line));
    if (verbose_ && json_) print_json(line);
    if (verbose_ && !json_) std::cout << concat(id_, ": ", text, "\n") << std::flush;
  }

  bool json_, verbose_;
  std::string id_;
  unsigned rank_;
  std::unique_ptr<MetricsWriter> metrics_;
  double stage_ms_ = 0, commit_ms_ = 0;
  std::uint64_t versions_ = 0, anchors_ = 0, wire_bytes_ = 0, plain_bytes_ = 0;
};

class Agent {
 public:
  Agent(const Common& common, const AgentArguments& arguments, Config config, JobProcess& process)
      : arguments_(arguments),
        config_(std::move(config)),
        process_(process),
        id_(receiver_id(config_, process_, process_.rank())),
        log_(common.json, arguments.verbose, id_, process_.rank()),
        listener_(config_.receiver.fetch_deadline) {}

  [[nodiscard]] Result<int> run() {
    DRIFTLESS_RETURN_IF_ERROR(open());
    DRIFTLESS_RETURN_IF_ERROR(follow());
    return close();
  }

 private:
  [[nodiscard]] Status open() {
    DRIFTLESS_RETURN_IF_ERROR(log_.open(config_.metrics_file));
    const bool files = config_.agent.hand_over == HandOver::kCheckpoint;
    if (files) DRIFTLESS_RETURN_IF_ERROR(open_checkpoint());
    DRIFTLESS_ASSIGN_OR_RETURN(
        road_, process_.receiver(Deadline::after(process_.together() ? std::chrono::hours(24)
                                                                     : config_.connect_deadline)));
    const Deadline deadline = Deadline::after(config_.connect_deadline);
    if (files) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          delivery_,
          make_checkpoint_delivery(config_, checkpoint_, *weights_.target, *road_, deadline));
    } else {
      DRIFTLESS_ASSIGN_OR_RETURN(delivery_,
                                 make_shm_delivery(config_, *road_, process_.threads(), deadline));
    }
    return open_engines();
  }

  [[nodiscard]] Status open_checkpoint() {
    Config config = config_;
    config.target = TargetKind::kCheckpoint;
    config.checkpoint_dir = config_.agent.checkpoint_dir;
    checkpoint_ = filled_in(config.checkpoint_dir, "agent", process_.rank());
    config.checkpoint_dir = checkpoint_;
    DRIFTLESS_ASSIGN_OR_RETURN(lock_, lock_checkpoint_for_agent(checkpoint_));
    DRIFTLESS_ASSIGN_OR_RETURN(weights_, open_weights(config, process_.rank(), arguments_.base));
    return {};
  }

  [[nodiscard]] Status open_engines() {
    const std::vector<AgentEngine>& engines = config_.agent.engines;
    if (!engines.empty()) DRIFTLESS_RETURN_IF_ERROR(check_http());
    std::vector<std::string> urls;
    for (const AgentEngine& engine : engines) urls.push_back(engine.url);
    fleet_ = std::make_unique<EngineFleet>(
        FleetOptions{config_.agent.retries, config_.agent.retry_wait}, std::move(urls));
    std::vector<std::unique_ptr<EngineSession>> sessions;
    for (const AgentEngine& engine : engines) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_token(engine.token_file));
      EngineLink link(engine.url, std::move(token), config_.agent.call_timeout,
                      &fleet_->stopping());
      DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineSession> session,
                                 delivery_->session(engine.kind, std::move(link)));
      sessions.push_back(std::move(session));
    }
    fleet_->start(std::move(sessions));
    fleet_->set_goal(delivery_->version());
    return {};
  }

  // Until the end of the run and all have it, a signal, or, with --once, all have what is there.
  [[nodiscard]] Status follow() {
    Deadline alive = Deadline::after(std::chrono::seconds(0));
    once_ = Deadline::after(config_.connect_deadline);
    while (StopSignals::received() == 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool delivered, deliver());
      const bool taken = take_updates();
      if (delivered && !met_) once_ = Deadline::after(config_.connect_deadline);
      if (delivered || taken || alive.expired()) {
        DRIFTLESS_RETURN_IF_ERROR(report());
        alive = Deadline::after(kSignOfLife);
      }
      if (!end_) DRIFTLESS_RETURN_IF_ERROR(listen_for_end());
      DRIFTLESS_ASSIGN_OR_RETURN(const bool over, is_over());
      if (over) return report();
    }
    return {};
  }

  [[nodiscard]] Result<bool> deliver() {
    const Result<std::optional<DeliveryReport>> report =
        delivery_->step(Deadline::after(kLookForDelivery));
    if (!report.ok()) {
      if (!may_pass(report.status().code())) return report.status();
      log_.tell(report.status());
      static_cast<void>(Backoff(kSignOfLife, kSignOfLife).sleep(Deadline::after(kSignOfLife)));
      return false;
    }
    if (!*report) return false;
    log_.delivered(**report);
    fleet_->set_goal(delivery_->version());
    return true;
  }

  [[nodiscard]] bool take_updates() {
    const std::vector<EngineUpdate> updates = fleet_->take_updates();
    for (const EngineUpdate& update : updates) log_.updated(update);
    return !updates.empty();
  }

  // The version that everybody on this host has: it is what the publisher is told. An engine that
  // fails counts with the version that it confirmed last; nothing if it never confirmed one.
  [[nodiscard]] std::optional<std::uint64_t> confirmed() const {
    std::uint64_t least = delivery_->version();
    const std::vector<Worker> workers = delivery_->workers();
    if (workers.size() < config_.agent.workers && reached_.size() < config_.agent.workers) {
      return std::nullopt;
    }
    // Shared memory that nobody has read is no version that somebody holds.
    const bool files = config_.agent.hand_over == HandOver::kCheckpoint;
    if (!files && workers.empty() && config_.agent.engines.empty()) return std::nullopt;
    for (const Worker& worker : workers) {
      if (!worker.version) return std::nullopt;
      least = std::min(least, *worker.version);
    }
    for (const EngineState& engine : fleet_->states()) {
      if (engine.version == 0) return std::nullopt;
      least = std::min(least, engine.version);
    }
    return least;
  }

  // The version that every engine confirmed once; 0 if one never did.
  [[nodiscard]] std::uint64_t confirmed_before() const {
    const std::vector<EngineState> engines = fleet_->states();
    const auto least = std::ranges::min_element(engines, {}, &EngineState::confirmed);
    return least == engines.end() ? 0 : least->confirmed;
  }

  // A version without a proof is the last one that was confirmed: an engine whose load failed may
  // hold parts of two.
  [[nodiscard]] Status report() {
    ReceiverReport report;
    report.id = id_;
    const std::optional<std::uint64_t> version = confirmed();
    report.version = version ? *version : confirmed_before();
    const std::optional<Digest> digest = version ? delivery_->digest(*version) : std::nullopt;
    if (digest) {
      report.proof = proof_with_times(concat(to_hex(*digest), kProofRun, to_hex(delivery_->run())),
                                      log_.stage_ms(), log_.commit_ms());
    }
    if (delivery_->wants_anchor()) {
      report.version = delivery_->version();
      report.proof = kAnchorWanted;
    }
    report.needs = delivery_->needs();
    if (report.needs.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(report.needs,
                                 needs_to_text(unknown_needs(delivery_->run()), kMaxNeedsBytes));
    }
    const Status told = road_->report(report, Deadline::after(config_.receiver.report_deadline));
    if (told.code() != StatusCode::kDeadlineExceeded) {
      unheard_.reset();
      log_.tell(told);
      return {};
    }
    if (!unheard_) unheard_ = Deadline::after(config_.connect_deadline);
    if (!unheard_->expired()) return {};
    return told.with_context(concat("no way to the trainer for deadlines.connect (",
                                    config_.connect_deadline.count(), " ms)"));
  }

  [[nodiscard]] Status listen_for_end() {
    DRIFTLESS_ASSIGN_OR_RETURN(end_, listener_.listen(process_.hear_end(), delivery_->run()));
    if (end_) grace_ = Deadline::after(config_.connect_deadline);
    return {};
  }

  [[nodiscard]] Result<bool> is_over() {
    if (end_) return grace_->expired() || all_took(end_->version);
    if (!arguments_.once) return false;
    if (once_.expired()) return true;  // close() tells who is behind
    if (delivery_->version() == 0) return false;
    DRIFTLESS_ASSIGN_OR_RETURN(const bool behind, delivery_->behind());
    met_ = met_ || !behind;
    return !behind && all_took(delivery_->version());
  }

  // Whether nobody is left to be waited for. An engine that was given up is not.
  [[nodiscard]] bool all_took(std::uint64_t version) {
    if (delivery_->version() < version) return false;
    bool all = true;
    for (const Worker& worker : delivery_->workers()) {
      const bool there = worker.version && *worker.version >= version;
      if (there) reached_.insert(worker.id);
      all = all && there;
    }
    const std::vector<EngineState> engines = fleet_->states();
    return all && reached_.size() >= config_.agent.workers &&
           std::ranges::all_of(engines, [&](const EngineState& engine) {
             return !engine.status.ok() || engine.version >= version;
           });
  }

  [[nodiscard]] Result<int> close() {
    const bool stopped = StopSignals::received() != 0 && !end_;
    const std::uint64_t last = end_ ? end_->version : delivery_->version();
    const bool there = all_took(last);
    if (end_) log_.tell(delivery_->tell_end(end_to_json(*end_)));
    fleet_->stop(/*confirm=*/!stopped);
    const bool took = there && fleet_->all_at(last);
    static_cast<void>(take_updates());
    Status wrong;
    const std::optional<Digest> digest = delivery_->digest(last);
    if (end_ && digest && *digest != end_->digest) {
      wrong = error(StatusCode::kMismatch, "version ", last, " has digest ", to_hex(*digest),
                    " here and ", to_hex(end_->digest), " at the trainer");
    }
    log_.ended(last, digest, fleet_->states(), reached_.size());
    const std::string behind = who_is_behind(last);
    log_.tell(road_->leave(Deadline::after(config_.receiver.report_deadline)));
    fleet_.reset();
    delivery_.reset();
    road_.reset();
    DRIFTLESS_RETURN_IF_ERROR(
        process_.close(Deadline::after(stopped ? kStopWait : config_.connect_deadline)));
    DRIFTLESS_RETURN_IF_ERROR(wrong);
    if (stopped) return 128 + StopSignals::received();
    if (took && (last > 0 || !arguments_.once)) return int{kExitOk};
    log_.tell(error(StatusCode::kIncomplete, "not everybody on this host ended at version ", last,
                    behind));
    return int{kExitDifferent};
  }

  // For the last message.
  [[nodiscard]] std::string who_is_behind(std::uint64_t last) const {
    std::string text = last > 0 ? "" : ": nothing was handed over";
    for (const Worker& worker : delivery_->workers()) {
      if (worker.version && *worker.version >= last) continue;
      text += concat("; worker ", worker.id, " ",
                     worker.version ? concat("is at version ", *worker.version) : worker.waits);
    }
    for (const EngineState& engine : fleet_->states()) {
      if (engine.status.ok() && engine.version == last) continue;
      text += concat("; engine ", engine.url, " is at version ", engine.version);
    }
    if (reached_.size() < config_.agent.workers) {
      text += concat("; ", reached_.size(), " workers had it, agent.workers is ",
                     config_.agent.workers);
    }
    return text;
  }

  const AgentArguments& arguments_;
  Config config_;
  JobProcess& process_;
  std::string id_;
  AgentLog log_;
  std::string checkpoint_;
  std::unique_ptr<FileLock> lock_;
  RolloutWeights weights_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<Delivery> delivery_;
  std::unique_ptr<EngineFleet> fleet_;  // its sessions look at the delivery
  std::optional<EndOfRun> end_;
  EndListener listener_;
  // With --once: since something was handed over, until all of what was there is.
  Deadline once_ = Deadline::after(std::chrono::milliseconds(0));
  bool met_ = false;                 // all was handed over, once
  std::optional<Deadline> grace_;    // after the end, for those that are behind
  std::optional<Deadline> unheard_;  // since the first report that did not come through
  std::set<std::string> reached_;    // workers that had the last version
};

}  // namespace

Result<int> run_agent(const Common& common, const AgentArguments& arguments) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments.job));
  if (config.road == kHostShm) {
    return error(StatusCode::kInvalidArgument,
                 "road.kind: host_shm is what an agent offers; it follows mpi_rma, nccl, "
                 "shared_fs or object_store");
  }
  return run_in_job(common, config, JobRole::kRollout, "agent", {}, [&](const auto& process) {
    Agent agent(common, arguments, config, *process);
    return agent.run();  // however that ends, engines are resumed and shared memory is given back
  });
}

}  // namespace driftless::cli
