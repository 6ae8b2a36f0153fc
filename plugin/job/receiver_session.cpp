// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/receiver_session.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "collectives/forwarding_receive_road.h"
#include "core/stopwatch.h"
#include "plugin/job/report_proof.h"

namespace driftless {
namespace {

constexpr std::chrono::seconds kSignOfLife{1};

}  // namespace

// The road, with the times of the last commit in every report.
class ReceiverSession::TimedRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  void set_times(const Digest& digest, double stage_ms, double commit_ms) {
    digest_ = to_hex(digest);
    stage_ms_ = stage_ms;
    commit_ms_ = commit_ms;
  }
  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline& deadline) override {
    ReceiverReport timed = report;
    if (!digest_.empty() && report.proof.starts_with(digest_)) {
      timed.proof = proof_with_times(report.proof, stage_ms_, commit_ms_);
    }
    return road_->report(timed, deadline);
  }

 private:
  std::string digest_;
  double stage_ms_ = 0, commit_ms_ = 0;
};

// An id that no other session of this process has: the second of a name is "name_2". It is free
// again once the session is gone, so that a receiver that is opened anew keeps its id.
class ReceiverSession::OwnId {
 public:
  explicit OwnId(const std::string& name) : id_(name) {
    Taken& all = taken();
    const std::scoped_lock lock(all.mutex);
    for (unsigned number = 2; !all.ids.insert(id_).second; ++number) {
      id_ = concat(name, "_", number);
    }
  }
  OwnId(const OwnId&) = delete;
  OwnId& operator=(const OwnId&) = delete;
  ~OwnId() {
    Taken& all = taken();
    const std::scoped_lock lock(all.mutex);
    all.ids.erase(id_);
  }
  [[nodiscard]] const std::string& text() const { return id_; }

 private:
  struct Taken {
    std::mutex mutex;
    std::set<std::string> ids;
  };
  static Taken& taken() {
    static Taken all;
    return all;
  }
  std::string id_;
};

ReceiverSession::ReceiverSession(Config config, std::shared_ptr<JobProcess> process,
                                 SessionOptions options)
    : config_(std::move(config)),
      process_(std::move(process)),
      options_(std::move(options)),
      own_id_(options_.id
                  ? nullptr
                  : std::make_unique<OwnId>(receiver_id(config_, *process_, process_->rank()))),
      id_(own_id_ ? own_id_->text() : *options_.id),
      end_(config_.receiver.fetch_deadline),
      alive_(Deadline::after(kSignOfLife)) {}

ReceiverSession::~ReceiverSession() { drop(); }

Status ReceiverSession::join(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> road, process_->receiver(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(
      metrics_, MetricsWriter::open(config_.metrics_file, "rollout", process_->rank()));
  road_ = std::make_unique<TimedRoad>(std::move(road));
  return {};
}

Status ReceiverSession::open(WeightTarget& target, const Deadline& deadline) {
  ReceiverOptions options = config_.receiver;
  options.id = id_;
  options.before_read = options_.before_read;
  options.pause = options_.pause;
  options.resume = options_.resume;
  options.take_over = options_.take_over;
  DRIFTLESS_ASSIGN_OR_RETURN(receiver_, Receiver::open(options, *road_, target, deadline));
  target_ = &target;
  alive_ = Deadline::after(kSignOfLife);
  if (!unproven().empty() && options_.warn) {
    options_.warn(error(StatusCode::kIncomplete, unproven(), "; it is reported as unproven"));
  }
  return {};
}

Result<ReceiverSession::Newest> ReceiverSession::poll(const Deadline& deadline) {
  const TargetState state = target_->state();
  Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(200));
  Newest found;
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed,
                               road_->list(Deadline::after(config_.receiver.report_deadline)));
    for (const PublicationId& id : listed) {
      found.version = std::max(found.version, id.version);
      found.newer = found.newer || !state.valid || id.version > state.id.version;
    }
    counts_.newest = std::max(counts_.newest, found.version);
    sign_of_life();
    if (found.newer || !backoff.sleep(deadline)) return found;
  }
}

Result<bool> ReceiverSession::stage(const Deadline& deadline) {
  for (;;) {
    Result<bool> staged = receiver_->stage(deadline.sooner(kSignOfLife));
    if (!staged.ok()) ++counts_.stage_failures;
    if (!staged.ok() || *staged) return staged;
    sign_of_life();
    if (deadline.expired()) return false;
  }
}

Result<bool> ReceiverSession::stage_patiently(const Deadline& deadline) {
  Result<bool> staged = stage(deadline);
  const StatusCode code = staged.status().code();
  if (code != StatusCode::kWrongBase && code != StatusCode::kMismatch &&
      code != StatusCode::kCorrupt && code != StatusCode::kIncomplete) {
    stranded_.reset();
    return staged;
  }
  trouble_ = staged.status();
  if (!stranded_) {
    stranded_ = Deadline::after(config_.receiver.fetch_deadline);
    warned_stranded_ = false;
  }
  // Most gaps close by themselves at once.
  const bool lasts = stranded_->remaining() < config_.receiver.fetch_deadline - kSignOfLife;
  if (lasts && !std::exchange(warned_stranded_, true) && options_.warn) {
    options_.warn(trouble_.with_context("waiting for an anchor, or for what is missing"));
  }
  sign_of_life();
  constexpr std::chrono::milliseconds kBetween{200};
  if (!Backoff(kBetween, kBetween).sleep(*stranded_)) return staged;
  return false;
}

Result<UpdateReport> ReceiverSession::commit() {
  const TargetState before = target_->state();
  Stopwatch watch;
  Result<UpdateReport> report = receiver_->commit();
  if (!report.ok()) {
    ++counts_.commit_failures;
    // A failed resume comes after a commit that holds.
    const TargetState after = target_->state();
    if (after.valid && !(after == before)) ++counts_.commits;
    return report;
  }
  road_->set_times(report->digest, report->fetch_ms + report->stage_ms, watch.lap_ms());
  alive_ = Deadline::after(kSignOfLife);
  count(*report);
  return report;
}

void ReceiverSession::count(UpdateReport& report) {
  if (metrics_) {
    const Status written = metrics_->write(metrics_of(report, process_->rank()));
    if (!written.ok()) report.notes.push_back(written.to_string());
  }
  counts_.newest = std::max(counts_.newest, report.version);
  ++counts_.commits;
  counts_.versions += report.versions;
  counts_.anchors += report.anchor ? 1 : 0;
  counts_.changed_units += report.changed_units;
  counts_.delta_bytes += report.delta_bytes;
  counts_.wire_bytes += report.wire_bytes;
  counts_.needed_bytes += report.needed_bytes;
  counts_.fetch_ms += report.fetch_ms;
  counts_.stage_ms += report.stage_ms;
  counts_.pause_ms += report.pause_ms;
  counts_.apply_ms += report.apply_ms;
  counts_.resume_ms += report.resume_ms;
  counts_.longest_pause_ms =
      std::max(counts_.longest_pause_ms, report.pause_ms + report.apply_ms + report.resume_ms);
}

Status ReceiverSession::rollback() {
  Status done = receiver_->rollback();
  if (done.ok()) ++counts_.rollbacks;
  return done;
}

// Waiting for versions ends well if the trainer is gone; only a report needs it.
Status ReceiverSession::report() {
  alive_ = Deadline::after(kSignOfLife);
  Status told = receiver_->report();
  if (told.code() != StatusCode::kDeadlineExceeded) {
    unheard_.reset();
  } else if (!unheard_) {
    unheard_ = Deadline::after(config_.connect_deadline);
  }
  unheard_why_ = told;
  return told;
}

// One that the road refuses stops nothing: a directory may be readable only.
void ReceiverSession::sign_of_life() {
  if (!alive_.expired()) return;
  const Status told = report();
  if (told.ok()) return;
  ++counts_.unheard;
  if (!unheard_ && options_.warn) options_.warn(told);
}

Status ReceiverSession::check_contact() const {
  if (!unheard_ || !unheard_->expired()) return {};
  return unheard_why_.with_context(concat("no way to the trainer for deadlines.connect (",
                                          config_.connect_deadline.count(), " ms), at version ",
                                          state().id.version));
}

Result<std::optional<EndOfRun>> ReceiverSession::listen_for_end() {
  return end_.listen(*process_, receiver_->run());
}

Status ReceiverSession::leave() { return receiver_->leave(); }

void ReceiverSession::drop() {
  receiver_.reset();
  road_.reset();
  own_id_.reset();
}

Status ReceiverSession::close(const Deadline& deadline) {
  drop();
  return process_->close(deadline);
}

}  // namespace driftless
