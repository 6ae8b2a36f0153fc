// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/agent.h"

#include <algorithm>

#include "core/line_log.h"
#include "formats/receiver_needs.h"
#include "formats/records.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/engines/engine_http.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

constexpr std::string_view kRole = "agent";
constexpr auto kLookForDelivery = std::chrono::milliseconds(100);
constexpr auto kLookAtRoad = std::chrono::seconds(1);

// Whether the agent goes on after this failure. An agent outlives an outage of its road, too; all
// other failures come from the configuration or from another run.
bool goes_on_after(StatusCode code) {
  return retry_may_mend(code) || code == StatusCode::kIo || code == StatusCode::kDeadlineExceeded;
}

VersionRecord delivery_record(const DeliveryReport& delivery, unsigned rank) {
  const UpdateReport& update = delivery.update;
  VersionRecord record = record_of(update, rank);
  record.origin.role = kRole;
  record.received.reset();
  record.delivered = {update.needed_bytes, delivery.plain_bytes, update.fetch_ms,
                      delivery.process_ms, update.apply_ms,      update.carrier};
  return record;
}

}  // namespace

Status check_agent_config(const Config& config) {
  if (!config.kind().one_host) return {};
  return error(StatusCode::kInvalidArgument, "road.kind: ", config.road,
               " is what an agent offers; it follows a road between hosts: mpi_rma, nccl, "
               "peer, shared_fs or object_store");
}

Agent::Agent(Config config, JobProcess& process, AgentRunOptions options)
    : config_(std::move(config)),
      process_(process),
      options_(std::move(options)),
      engines_(config_.driven_engines()),
      id_(receiver_id(config_, process_, process_.rank())),
      contact_(config_.connect_deadline),
      listener_(config_.receiver.fetch_deadline) {
  config_.receiver.report_deadline =
      TrainerContact::report_time(config_.receiver.report_deadline, config_.connect_deadline);
}

void Agent::log(const Status& status) const {
  if (!status.ok() && options_.failed) options_.failed(status);
}

void Agent::fail(const Status& status) {
  if (!status.ok()) sinks_->records().failed(status);
  log(status);
}

// Lists the road to find the newest version there. If readiness depended only on the versions that
// this agent has taken, an agent far behind its trainer would be ready. deliver() reports a road
// that cannot be listed.
void Agent::look_at_road() {
  RunView* const view = sinks_->view();
  if (view == nullptr || !next_look_.expired()) return;
  next_look_ = Deadline::after(kLookAtRoad);
  const auto listed = road_->list(Deadline::after(config_.receiver.report_deadline));
  if (!listed.ok()) return;
  std::uint64_t newest = 0;
  for (const PublicationId& id : *listed) newest = std::max(newest, id.version);
  view->listed(newest);
}

void Agent::show() {
  RunView* const view = sinks_->view();
  if (view == nullptr) return;
  std::vector<EngineRecord> engines = fleet_->states();
  for (EngineRecord& engine : engines) complete(engine);
  view->replace(std::move(engines));
  if (end_) view->end_run();
  view->reaches_trainer(!contact_.silent());
  std::vector<RolloutRecord> workers;
  for (const HostReceiver& each : delivery_->workers()) {
    RolloutRecord& worker = workers.emplace_back();
    worker.id = each.id;
    worker.run = to_hex(delivery_->run());
    if (!each.version) continue;
    worker.version = *each.version;
    const std::optional<Digest> digest = delivery_->digest(*each.version);
    if (digest) worker.digest = to_hex(*digest);
    worker.proven = digest.has_value();
  }
  sinks_->records().replace(workers);
}

Status Agent::open() {
  DRIFTLESS_ASSIGN_OR_RETURN(sinks_,
                             RecordSinks::open(config_, process_, kRole, process_.rank(), true));
  const bool files = config_.agent.hand_over == HandOver::kCheckpoint;
  if (!files && engines_.empty() && !config_.engines.empty() && config_.agent.workers == 0) {
    return error(StatusCode::kInvalidArgument,
                 "no entry of engines has a kind, so this agent has no engine to drive: give a "
                 "kind (vllm or sglang) to those of its host, or set agent.workers to the number "
                 "of workers that follow it without an engine, or agent.hand_over: checkpoint");
  }
  if (files) DRIFTLESS_RETURN_IF_ERROR(open_checkpoint());
  DRIFTLESS_ASSIGN_OR_RETURN(
      road_, process_.receiver(Deadline::after(process_.together() ? std::chrono::hours(24)
                                                                   : config_.connect_deadline)
                                   .unless(options_.stopped)));
  const Deadline deadline = Deadline::after(config_.connect_deadline).unless(options_.stopped);
  if (files) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        delivery_, make_checkpoint_delivery(config_, checkpoint_, *target_, *road_, deadline));
  } else if (config_.agent.hand_over == HandOver::kWorkers) {
    DRIFTLESS_ASSIGN_OR_RETURN(delivery_, make_workers_delivery(config_, *road_, deadline));
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(delivery_,
                               make_shm_delivery(config_, *road_, process_.threads(), deadline));
  }
  once_ = Deadline::after(config_.connect_deadline);
  return open_engines();
}

Status Agent::open_checkpoint() {
  if (config_.frames_on_device()) {
    return error(StatusCode::kInvalidArgument,
                 "road.nccl.arrival: device needs receiver.target: device: other weights are "
                 "patched from host memory");
  }
  FileSystem& fs = posix_file_system();
  checkpoint_ = filled_in(config_.agent.checkpoint_dir, "agent", process_.rank());
  DRIFTLESS_ASSIGN_OR_RETURN(lock_, lock_checkpoint_for_agent(checkpoint_));
  DRIFTLESS_RETURN_IF_ERROR(copy_base(options_.base, checkpoint_));
  DRIFTLESS_ASSIGN_OR_RETURN(target_,
                             make_checkpoint_target(fs, checkpoint_, config_.receiver.threads));
  return {};
}

Status Agent::open_engines() {
  if (!engines_.empty()) DRIFTLESS_RETURN_IF_ERROR(check_http());
  std::vector<std::string> urls;
  for (const EngineEndpoint& engine : engines_) urls.push_back(without_users(engine.url));
  fleet_ = std::make_unique<EngineFleet>(config_.engine_calls, std::move(urls),
                                         config_.agent.engine_look);
  std::vector<std::unique_ptr<EngineSession>> sessions;
  for (EngineEndpoint& engine : engines_) {
    DRIFTLESS_RETURN_IF_ERROR(prepare_endpoint(engine));
    EngineLink link(engine, config_.engine_calls.timeout, &fleet_->stopping(),
                    fleet_->http(sessions.size()));
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineSession> session,
                               delivery_->session(*engine.kind, std::move(link)));
    sessions.push_back(std::move(session));
  }
  fleet_->start(std::move(sessions));
  fleet_->set_goal(delivery_->version());
  if (sinks_->view() != nullptr) {
    show();  // before the view opens: without engines in it, the agent would be ready
    const std::optional<Digest> digest = delivery_->digest(delivery_->version());
    sinks_->view()->open(delivery_->run(), delivery_->version(), digest ? to_hex(*digest) : "");
  }
  return {};
}

Result<bool> Agent::step() {
  DRIFTLESS_ASSIGN_OR_RETURN(const bool delivered, deliver());
  const bool taken = take_updates();
  look_at_road();
  show();
  if (delivered && !met_) once_ = Deadline::after(config_.connect_deadline);
  if (delivered || taken || contact_.due()) DRIFTLESS_RETURN_IF_ERROR(report());
  if (!end_) {
    DRIFTLESS_ASSIGN_OR_RETURN(end_, listener_.listen(process_.fetch_end(), delivery_->run()));
    if (end_) grace_ = Deadline::after(config_.connect_deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const bool over, is_over());
  if (over) DRIFTLESS_RETURN_IF_ERROR(report());
  return over;
}

Result<bool> Agent::deliver() {
  const Result<std::optional<DeliveryReport>> report =
      delivery_->step(Deadline::after(kLookForDelivery));
  if (!report.ok()) {
    if (!goes_on_after(report.status().code())) return report.status();
    fail(report.status());
    if (RunView* const view = sinks_->view(); view != nullptr) view->cannot_take(report.status());
    constexpr auto kWait = TrainerContact::kSignOfLife;
    static_cast<void>(Backoff(kWait, kWait).sleep(Deadline::after(kWait)));
    return false;
  }
  if (!*report) return false;
  const DeliveryReport& made = **report;
  stage_ms_ = made.process_ms;
  commit_ms_ = made.update.apply_ms;
  VersionRecord record = delivery_record(made, process_.rank());
  record.run = delivery_->run();
  record.fallback = process_.fallback();
  if (RunView* const view = sinks_->view(); view != nullptr) view->made(made.update.created);
  sinks_->records().add(record);
  log(sinks_->records().take_trouble());
  if (options_.delivered) options_.delivered(record);
  for (const std::string& note : made.update.notes) fail(Status(StatusCode::kIo, note));
  fleet_->set_goal(delivery_->version());
  return true;
}

// Fills in the digest and the proof: a version is confirmed only with its digest, by the engine's
// workers, or by the files if the engine reads the checkpoint.
void Agent::complete(EngineRecord& record) const {
  const std::optional<Digest> digest = delivery_->digest(record.version);
  if (record.origin.time.empty()) record.origin = record_origin(kRole, process_.rank());
  record.origin.role = kRole;
  record.origin.rank = process_.rank();
  record.run = delivery_->run();
  record.digest = digest ? to_hex(*digest) : "";
  const auto engine = std::ranges::find(
      engines_, record.engine, [](const EngineEndpoint& each) { return without_users(each.url); });
  if (engine != engines_.end()) record.kind = to_string(*engine->kind);
  const bool files = config_.agent.hand_over == HandOver::kCheckpoint;
  if (record.status.ok() && digest && record.version > 0)
    record.proven = files ? "files" : "workers";
}

bool Agent::take_updates() {
  std::vector<EngineRecord> updates = fleet_->take_updates();
  for (EngineRecord& update : updates) {
    complete(update);
    sinks_->records().add(update);
    log(sinks_->records().take_trouble());
    if (update.looked()) {
      log(update.status.with_context(concat("engine ", update.engine)));
      continue;
    }
    if (!update.status.ok()) {
      log(update.status.with_context(concat("engine ", update.engine, " did not take version ",
                                            update.goal, " after ", update.attempts, " tries")));
      continue;
    }
    const CommitTimes& times = update.commit;
    stage_ms_ = times.stage_ms;
    commit_ms_ = times.pause_ms + times.apply_ms + times.resume_ms;
    if (options_.updated) options_.updated(update);
  }
  return !updates.empty();
}

// Whether this host has no engine and no worker: then nothing confirms a version in shared memory.
bool Agent::nobody_there() const {
  const bool files = config_.agent.hand_over == HandOver::kCheckpoint;
  return !files && engines_.empty() && delivery_->workers().empty();
}

// The version that all engines and workers of this host hold, which is reported to the publisher.
// An engine whose update failed counts with its version before. Nothing if the version of an engine
// or a worker is not known.
std::optional<std::uint64_t> Agent::confirmed() const {
  std::uint64_t least = delivery_->version();
  const std::vector<HostReceiver> workers = delivery_->workers();
  if (workers.size() < config_.agent.workers && reached_.size() < config_.agent.workers) {
    return std::nullopt;
  }
  if (nobody_there()) return std::nullopt;
  for (const HostReceiver& worker : workers) {
    if (!worker.version) return std::nullopt;
    least = std::min(least, *worker.version);
  }
  for (const EngineRecord& engine : fleet_->states()) {
    if (engine.version == 0) return std::nullopt;
    least = std::min(least, engine.version);
  }
  return least;
}

// The version that every engine has confirmed at some time; 0 if one never has.
std::uint64_t Agent::confirmed_before() const {
  const std::vector<EngineRecord> engines = fleet_->states();
  const auto least = std::ranges::min_element(engines, {}, &EngineRecord::confirmed);
  return least == engines.end() ? 0 : least->confirmed;
}

// Reports the version that this host holds, with its digest. If none is confirmed now, reports the
// last one that all engines confirmed, without a proof: an engine whose load failed may hold parts
// of two versions.
Status Agent::report() {
  ReceiverReport report;
  report.id = id_;
  const std::optional<std::uint64_t> version = confirmed();
  report.version = version ? *version : confirmed_before();
  const std::optional<Digest> digest = version ? delivery_->digest(*version) : std::nullopt;
  if (digest) {
    report.proof = to_text(
        ReportProof{to_hex(*digest), to_hex(delivery_->run()), 0, true, stage_ms_, commit_ms_});
  }
  if (delivery_->wants_anchor()) {
    report.version = delivery_->version();
    report.proof = kAnchorWanted;
  }
  report.needs = delivery_->needs();
  if (report.needs.empty()) {
    ReceiverNeeds needs = unknown_needs(delivery_->run());
    needs.idle = nobody_there() && config_.agent.workers == 0;
    DRIFTLESS_ASSIGN_OR_RETURN(report.needs, needs_to_text(needs, kMaxNeedsBytes));
  }
  const Status reported =
      road_->report(report, contact_.begin_report(config_.receiver.report_deadline));
  contact_.note(reported);
  if (!contact_.silent()) fail(reported);
  return contact_.check(delivery_->version());
}

Result<bool> Agent::is_over() {
  if (end_) return grace_->expired() || all_took_or_waits(end_->version);
  if (!options_.once) return false;
  if (once_.expired()) return true;  // end() names those that are behind
  if (delivery_->version() == 0) return false;
  DRIFTLESS_ASSIGN_OR_RETURN(const bool newer, delivery_->has_newer());
  met_ = met_ || !newer;
  return !newer && all_took_or_waits(delivery_->version());
}

bool Agent::all_took_or_waits(std::uint64_t version) {
  if (all_took(version)) return true;
  waiting_.look([&] {
    return concat(id_, ": not every worker and engine on this host has version ", version,
                  lagging_names(version));
  });
  return false;
}

// Whether there is nothing left to wait for. Engines that were given up are not waited for.
bool Agent::all_took(std::uint64_t version) {
  if (delivery_->version() < version) return false;
  bool all = true;
  for (const HostReceiver& worker : delivery_->workers()) {
    const bool there = worker.version && *worker.version >= version;
    if (there) reached_.insert(worker.id);
    all = all && there;
  }
  const std::vector<EngineRecord> engines = fleet_->states();
  return all && reached_.size() >= config_.agent.workers &&
         std::ranges::all_of(engines, [&](const EngineRecord& engine) {
           return engine.given_up() || engine.version >= version;
         });
}

AgentEnd Agent::end(bool confirm) {
  AgentEnd made;
  made.version = end_ ? end_->version : delivery_->version();
  made.digest = delivery_->digest(made.version);
  const bool there = all_took(made.version);
  if (end_) log(delivery_->publish_end(end_to_json(*end_)));
  fleet_->stop(confirm);
  made.all_have_it = there && fleet_->all_at(made.version) && (made.version > 0 || !options_.once);
  static_cast<void>(take_updates());
  if (end_ && made.digest && *made.digest != end_->digest) {
    made.digests =
        error(StatusCode::kMismatch, "version ", made.version, " has digest ", to_hex(*made.digest),
              " here and ", to_hex(end_->digest), " at the trainer");
  }
  made.run = delivery_->run();
  made.engines = fleet_->states();
  for (EngineRecord& engine : made.engines) complete(engine);
  made.workers = reached_.size();
  made.lagging = lagging_names(made.version);
  sinks_->records().add(EndRecord{record_origin(kRole, process_.rank()), made.run, kRole, id_,
                                  made.version, made.digest ? to_hex(*made.digest) : ""});
  log(road_->leave(Deadline::after(config_.receiver.report_deadline)));
  fleet_.reset();
  delivery_.reset();
  road_.reset();
  return made;
}

// For messages: names the workers and engines that do not have version `last`.
std::string Agent::lagging_names(std::uint64_t last) const {
  std::string text = last > 0 ? "" : ": nothing was handed over";
  for (const HostReceiver& worker : delivery_->workers()) {
    if (worker.version && *worker.version >= last) continue;
    text += concat("; worker ", worker.id, " ",
                   worker.version ? concat("is at version ", *worker.version) : worker.waits);
  }
  for (const EngineRecord& engine : fleet_->states()) {
    if (engine.status.ok() && engine.version == last) continue;
    text += engine.reachable ? concat("; engine ", engine.engine, " is at version ", engine.version)
                             : concat("; engine ", engine.engine, " ", engine.status.message());
  }
  if (reached_.size() < config_.agent.workers) {
    text +=
        concat("; ", reached_.size(), " workers had it, agent.workers is ", config_.agent.workers);
  }
  return text;
}

}  // namespace driftless
