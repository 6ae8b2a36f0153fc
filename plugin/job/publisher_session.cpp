// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/publisher_session.h"

#include "core/stopwatch.h"
#include "formats/receiver_needs.h"
#include "formats/records.h"

namespace driftless {

bool wants_parts(const ReceiverReport& report) {
  if (report.proof.empty() || report.proof == kAnchorWanted) return false;
  const Result<ReceiverNeeds> needs = parse_needs(report.needs, report.id);
  return needs.ok() && std::ranges::any_of(needs->tensors, [](const TensorNeed& need) {
           return need.kind != TensorNeed::Kind::kAll;
         });
}

Result<std::unique_ptr<PublisherSession>> PublisherSession::open(const Config& config,
                                                                 JobProcess& process,
                                                                 WeightSource& base,
                                                                 std::unique_ptr<Group> group,
                                                                 WeightSource* live) {
  std::unique_ptr<PublisherSession> session(new PublisherSession(config, process));
  DRIFTLESS_RETURN_IF_ERROR(session->start(base, std::move(group), live));
  return session;
}

Status PublisherSession::start(WeightSource& base, std::unique_ptr<Group> group,
                               WeightSource* live) {
  config_.publisher.quantize = config_.quantize;
  Group* joined = group.get();
  group_ = std::move(group);
  if (joined == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(group_, process_.group());
    if (process_.groups_by_hub()) joined = group_.get();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(sinks_,
                             RecordSinks::open(config_, process_, "trainer", rank(), leads()));
  const std::uint64_t anchor = config_.anchors() ? anchor_room_bytes(base) : 0;
  DRIFTLESS_ASSIGN_OR_RETURN(
      road_, process_.sender(anchor, Deadline::after(config_.connect_deadline), joined));
  DRIFTLESS_ASSIGN_OR_RETURN(history_, process_.history());
  config_.publisher.background = process_.threads();
  config_.publisher.keep_snapshot = config_.gpu.snapshot != SnapshotPlace::kNone;
  DRIFTLESS_ASSIGN_OR_RETURN(
      publisher_, Publisher::open(config_.publisher, *group_, *road_, history_.get(), base, live));
  if (!leads()) return {};
  DRIFTLESS_RETURN_IF_ERROR(process_.withdraw_end());
  DRIFTLESS_ASSIGN_OR_RETURN(engines_, NotifiedEngines::open(config_));
  const EndOfRun first = newest();
  if (sinks_->view() != nullptr) {
    sinks_->view()->open(first.run, first.version, to_hex(first.digest));
  }
  return {};
}

Result<PublishReport> PublisherSession::publish(WeightSource& weights,
                                                std::optional<std::uint64_t> step) {
  wait_for_background(true);
  Result<PublishReport> report = publish_now(weights, true, step);
  // This version contains the failed one's changes.
  if (report.ok() && background_result_ && !background_result_->ok()) background_result_.reset();
  return report;
}

void PublisherSession::publish_in_background(WeightSource& weights, WeightSource& live,
                                             void* stream, std::optional<std::uint64_t> step) {
  Stopwatch watch;
  wait_for_background();
  // A failure here recurs when the version is published.
  static_cast<void>(publisher_->observe(weights, stream, process_.threads()));
  if (!process_.threads()) {
    background_result_ = publish_now(live, true, step);
    return;
  }
  step_ms_ += watch.lap_ms();
  under_way_ = std::async(std::launch::async,
                          [this, &live, step] { return publish_now(live, false, step); });
}

void PublisherSession::wait_for_background(bool in_step) {
  if (!under_way_.valid()) return;
  Stopwatch watch;
  background_result_ = under_way_.get();
  if (in_step) step_ms_ += watch.lap_ms();
}

std::optional<Result<PublishReport>> PublisherSession::wait() {
  wait_for_background();
  return std::exchange(background_result_, std::nullopt);
}

Status PublisherSession::capture(std::span<const Publisher::NewTensor> values, void* stream) {
  Stopwatch watch;
  wait_for_background();
  const Status captured = publisher_->capture(values, stream);
  step_ms_ += watch.lap_ms();
  return captured;
}

void PublisherSession::doubt() {
  wait_for_background();
  publisher_->doubt();
}

Result<PublishReport> PublisherSession::publish_now(WeightSource& weights, bool in_step,
                                                    std::optional<std::uint64_t> step) {
  Result<PublishReport> report = publisher_->publish(weights, step);
  if (report.ok() && !config_.publisher.keep_snapshot) {
    report->live.step_ms = std::exchange(step_ms_, 0) + (in_step ? report->total_ms : 0);
  }
  record(report);
  return report;
}

// Collects the rollouts' reports for the status server here, because the server's threads must not
// use the road.
void PublisherSession::record(Result<PublishReport>& report) {
  if (records().empty()) return;
  if (!report.ok()) return records().failed(report.status());
  VersionRecord record = record_of(*report, rank());
  record.fallback = process_.fallback();
  records().add(record);
  if (leads() && sinks_->view() != nullptr) static_cast<void>(collect_reports());
  const Status trouble = records().take_trouble();
  if (!trouble.ok()) report->notes.push_back(trouble.to_string());
}

Result<std::vector<ReceiverReport>> PublisherSession::listen_to_all() {
  wait_for_background();
  road_->progress();
  return road_->receivers();
}

Result<std::vector<ReceiverReport>> PublisherSession::listen() {
  wait_for_background();
  return collect_reports();
}

Result<std::vector<ReceiverReport>> PublisherSession::collect_reports() {
  road_->progress();
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<ReceiverReport> reports, road_->receivers());
  const std::string run = to_hex(newest().run);
  std::erase_if(reports, [&](const ReceiverReport& report) {
    const std::string of = reported_run(report.proof, report.needs);
    return !of.empty() && of != run;
  });
  if (sinks_->view() == nullptr) return reports;
  std::vector<RolloutRecord> rollouts;
  const std::vector<std::string> left = road_->left();
  for (const ReceiverReport& report : reports) {
    rollouts.push_back(record_of(report));
    rollouts.back().left = std::ranges::find(left, report.id) != left.end();
  }
  records().replace(rollouts);
  return reports;
}

void PublisherSession::record_engines() {
  for (EngineRecord record : engines_->states()) {
    record.origin = record_origin("trainer", rank());
    record.run = newest().run;
    if (record.version == newest().version) record.digest = to_hex(newest().digest);
    records().add(record);
  }
}

bool PublisherSession::needed(std::uint64_t version, std::size_t rollouts) {
  const Result<std::vector<ReceiverReport>> reports = listen_to_all();
  if (!reports.ok() || reports->size() < rollouts) return true;
  return std::ranges::any_of(*reports, [&](const ReceiverReport& report) {
    return report.proof.empty() || report.proof == kAnchorWanted || report.version < version;
  });
}

std::map<std::string, Status> PublisherSession::patched(std::uint64_t version,
                                                        std::size_t rollouts) {
  const Result<std::vector<ReceiverReport>> reports = listen();
  if (reports.ok()) patchers_.listen(*reports);
  Status read = reports.status();
  if (reports.ok() && reports->size() < rollouts) {
    read = error(StatusCode::kIncomplete, reports->size(), " of ", rollouts,
                 " rollouts have reported");
  }
  std::map<std::string, Status> found;
  for (const std::string& directory : engines_->checkpoints()) {
    found[directory] =
        read.ok() ? patchers_.check(directory, version, to_hex(newest().digest)) : read;
  }
  return found;
}

// Waits until the checkpoints are patched. Otherwise an engine would load the version before, or
// parts of two, and get the label of this one.
std::map<std::string, Status> PublisherSession::wait_patched(std::uint64_t version,
                                                             std::size_t rollouts) {
  Backoff backoff(std::chrono::milliseconds(5), std::chrono::milliseconds(200));
  const Deadline deadline = Deadline::after(config_.engine_calls.timeout);
  const auto ok = [](const auto& each) { return each.second.ok(); };
  std::map<std::string, Status> found = patched(version, rollouts);
  Waiting waiting;
  const auto whom = [&] {
    std::string text = concat("version ", version, " is not patched into:");
    for (const auto& [directory, status] : found) {
      if (!status.ok()) text += concat(" ", directory, " (", status.message(), ")");
    }
    return text;
  };
  while (!std::ranges::all_of(found, ok) && waiting.sleep(backoff, deadline, whom)) {
    found = patched(version, rollouts);
  }
  for (auto& [directory, status] : found) {
    if (status.ok()) continue;
    status = error(StatusCode::kIncomplete, "was not notified to load its checkpoint ", directory,
                   ": no report confirms that version ", version,
                   " was patched into it, with the trainer's digest, within engine_calls.timeout (",
                   config_.engine_calls.timeout.count(), " ms): ", status.message(),
                   "; start the receiver that patches it, or use action: pull_weights");
  }
  return found;
}

std::vector<Status> PublisherSession::notify_engines(std::uint64_t version, std::size_t rollouts) {
  wait_for_background();
  if (engines_ == nullptr) return {};
  if (process_.together()) rollouts = std::max<std::size_t>(rollouts, process_.rollouts());
  std::map<std::string, Status> patched;
  if (!engines_->checkpoints().empty()) patched = wait_patched(version, rollouts);
  std::vector<Status> failures = engines_->notify(version, patched);
  record_engines();
  if (!engines_->acknowledged() || !config_.notify.cleanup) return failures;
  if (needed(version, rollouts)) return failures;
  Status removed = engines_->cleanup(version);
  if (!removed.ok()) failures.push_back(std::move(removed));
  return failures;
}

Status PublisherSession::declare_end() {
  wait_for_background();
  if (background_result_ && !background_result_->ok()) {
    return std::exchange(background_result_, std::nullopt)->status();
  }
  // prune(0) removes nothing, but fails if another publisher has taken the road over: that
  // publisher's rollouts must not end with this one's last version.
  Status alone = leads() ? road_->prune(0).status() : Status();
  if (!alone.ok() && alone.code() != StatusCode::kIncomplete) return alone;
  // The process was restarted and has published no version since: it does not know which engines
  // were notified.
  const bool resumed = publisher_->resumed() && newest().version > 0;
  if (engines_ != nullptr && resumed && engines_->newest() == 0) {
    static_cast<void>(notify_engines(newest().version));  // engines() has the failures
  }
  DRIFTLESS_RETURN_IF_ERROR(
      process_.publish_end(end_to_json(newest()), Deadline::after(config_.connect_deadline)));
  records().add(EndRecord{record_origin("trainer", rank()), newest().run, "summary", "",
                          newest().version, to_hex(newest().digest)});
  return alone;
}

}  // namespace driftless
