#include "plugin/c_abi/follower.h"

#include <algorithm>
#include <utility>

#include "plugin/job/job_names.h"
#include "plugin/job/on_demand/roads_access.h"

namespace driftless::c_abi {
namespace {

constexpr std::chrono::seconds kSignOfLife{1};

Status run_callback(driftless_callback callback, void* user, const char* name) {
  if (callback == nullptr) return {};
  int32_t answer = 0;
  try {
    answer = callback(user);
  } catch (...) {
    return error(StatusCode::kInternal, "the callback ", name, " has thrown an exception");
  }
  if (answer == DRIFTLESS_OK) return {};
  const bool known = answer > DRIFTLESS_OK && answer <= DRIFTLESS_INTERNAL;
  return error(known ? static_cast<StatusCode>(answer) : StatusCode::kBusy, "the callback ", name,
               " has failed with ", answer);
}

// What the file says of the trainer's side, or of a target that is made here, needs no backend.
void forget_what_is_not_ours(Config& config) {
  config.target = TargetKind::kMemory;
  config.gpu.snapshot = SnapshotPlace::kHost;
  config.engines.clear();
}

}  // namespace

class Follower::Turn {
 public:
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (of_ == nullptr) return;
    of_->show();
    of_->in_use_.clear();
  }

  [[nodiscard]] static Result<Turn> take(Follower& of) {
    if (of.in_use_.test_and_set()) {
      return error(StatusCode::kBusy,
                   "the receiver is in use by another thread, or by the call that this one is made "
                   "from: one call at a time");
    }
    Turn turn(of);
    if (of.phase_ == Phase::kClosed) {
      return error(StatusCode::kInvalidArgument, "the receiver is closed");
    }
    const bool bound = of.process_ != nullptr && !of.process_->threads();
    if (bound && std::this_thread::get_id() != of.starter_) {
      return error(StatusCode::kInvalidArgument,
                   "this MPI was granted without threads: all calls must come from the thread that "
                   "called driftless_start()");
    }
    return turn;
  }

 private:
  explicit Turn(Follower& of) : of_(&of) {}
  Follower* of_;
};

Result<std::shared_ptr<Follower>> Follower::open(const std::string& config_path,
                                                 std::span<const std::string> overrides,
                                                 const FollowerOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(Config config,
                             load_config(posix_file_system(), config_path, overrides));
  forget_what_is_not_ours(config);
  if (options.threads != 0) config.receiver.threads = options.threads;
  DRIFTLESS_RETURN_IF_ERROR(check_available(config, options.launched).with_context(config_path));
  auto follower = std::make_shared<Follower>(std::move(config), options);
  follower->show();
  return follower;
}

Follower::~Follower() { drop(); }

Status Follower::set_callbacks(const driftless_callbacks& callbacks) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ != Phase::kOpen || process_ != nullptr) {
    return error(StatusCode::kInvalidArgument, "callbacks are set before driftless_start()");
  }
  callbacks_ = callbacks;
  return {};
}

Status Follower::add(const driftless_tensor& tensor) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ == Phase::kStarted) {
    return error(StatusCode::kInvalidArgument, "tensors are registered before driftless_start()");
  }
  if (phase_ == Phase::kBroken) return check_started();
  return tensors_.add(tensor);
}

Status Follower::check_started() const {
  if (phase_ == Phase::kStarted) return {};
  if (phase_ == Phase::kBroken) {
    return error(StatusCode::kInvalidArgument,
                 "it can only be closed, since starting failed: ", broken_.to_string());
  }
  return error(StatusCode::kInvalidArgument, "the receiver is not started");
}

// Whether joining is a meeting with other processes, which cannot be held twice.
bool Follower::collective() const {
  return options_.launched || config_.road == RoadKind::kMpiRma ||
         (config_.road == RoadKind::kNccl && config_.rendezvous.kind == RendezvousKind::kMpi);
}

Status Follower::make_road(const Deadline& deadline) {
  LateHandler late;
  if (callbacks_.late != nullptr) {
    late = [callback = callbacks_.late, user = callbacks_.user](const Status& why) {
      callback(user, why.to_string().c_str());
    };
  }
  DRIFTLESS_ASSIGN_OR_RETURN(process_,
                             join_job(config_, JobRole::kRollout, options_.launched, late));
  DRIFTLESS_ASSIGN_OR_RETURN(road_, process_->receiver(deadline));
  if (config_.metrics_file.empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(
      MetricsWriter writer,
      MetricsWriter::open(filled_in(config_.metrics_file, "rollout", process_->rank())));
  metrics_file_.emplace(std::move(writer));
  return {};
}

Status Follower::join(const Deadline& deadline) {
  if (road_ != nullptr) return {};
  starter_ = std::this_thread::get_id();
  Status made = make_road(deadline);
  if (made.ok()) return {};
  if (collective()) {
    phase_ = Phase::kBroken;
    broken_ = made;
  } else {
    road_.reset();
    process_.reset();
  }
  return made;
}

Status Follower::open_receiver(const std::optional<VersionId>& holds, const Deadline& deadline) {
  ReceiverOptions options = config_.receiver;
  options.id = options_.id.value_or(receiver_id(config_, *process_, process_->rank()));
  options.pause = [this] { return pause(); };
  options.resume = [this] { return resume(); };
  DRIFTLESS_ASSIGN_OR_RETURN(target_, tensors_.make_target(holds, config_.receiver.threads));
  DRIFTLESS_ASSIGN_OR_RETURN(receiver_, Receiver::open(options, *road_, *target_, deadline));
  return {};
}

Status Follower::start(const std::optional<VersionId>& holds, std::optional<Wait> wait) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ == Phase::kStarted) {
    return error(StatusCode::kInvalidArgument, "the receiver is started already");
  }
  if (phase_ == Phase::kBroken) return check_started();
  if (config_.road == RoadKind::kNccl && config_.nccl.landing == MemoryKind::kDevice &&
      tensors_.device() == nullptr) {
    return error(StatusCode::kInvalidArgument,
                 "road.nccl.landing: device needs tensors on a GPU: others are patched from host "
                 "memory");
  }
  // A wrong tensor is told before anybody is met.
  DRIFTLESS_RETURN_IF_ERROR(tensors_.check());
  const Deadline deadline = Deadline::after(wait.value_or(config_.connect_deadline));
  DRIFTLESS_RETURN_IF_ERROR(join(deadline));
  Status opened = open_receiver(holds, deadline);
  if (!opened.ok()) {
    target_.reset();
    return opened;
  }
  phase_ = Phase::kStarted;
  alive_ = Deadline::after(kSignOfLife);
  return {};
}

Status Follower::pause() {
  paused_ = false;
  DRIFTLESS_RETURN_IF_ERROR(run_callback(callbacks_.pause, callbacks_.user, "pause"));
  Status waited = tensors_.wait_for_streams();
  paused_ = waited.ok();
  if (paused_) return {};
  const Status resumed = resume();
  if (resumed.ok()) return waited;
  return error(waited.code(), waited.message(), "; and ", resumed.message());
}

Status Follower::resume() { return run_callback(callbacks_.resume, callbacks_.user, "resume"); }

Result<Polled> Follower::poll(Wait wait) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  const TargetState state = target_->state();
  const Deadline deadline = Deadline::after(wait);
  Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(200));
  Polled found;
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed,
                               road_->list(Deadline::after(config_.receiver.report_deadline)));
    for (const PublicationId& id : listed) {
      found.newest = std::max(found.newest, id.version);
      found.newer = found.newer || !state.valid || id.version > state.id.version;
    }
    metrics_.newest = std::max<std::uint64_t>(metrics_.newest, found.newest);
    give_sign_of_life();
    if (found.newer || !backoff.sleep(deadline)) return found;
  }
}

Result<bool> Follower::stage(Wait wait) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  const Deadline deadline = Deadline::after(wait);
  staged_ = false;
  for (;;) {
    Result<bool> news = receiver_->stage(deadline.sooner(kSignOfLife));
    if (!news.ok()) ++metrics_.stage_failures;
    if (!news.ok()) return news;
    staged_ = *news;
    if (staged_) return true;
    give_sign_of_life();
    if (deadline.expired()) return false;
  }
}

Result<UpdateReport> Follower::commit() {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  if (!staged_) return error(StatusCode::kInvalidArgument, "nothing is staged");
  const TargetState before = target_->state();
  Result<UpdateReport> report = receiver_->commit();
  if (!report.ok()) {
    count_failure(before);
    return report;
  }
  staged_ = false;
  alive_ = Deadline::after(kSignOfLife);
  count(*report);
  return report;
}

// A failed pause leaves what is staged; a failed resume comes after a commit that holds.
void Follower::count_failure(const TargetState& before) {
  ++metrics_.commit_failures;
  staged_ = !paused_;
  const TargetState after = target_->state();
  if (!after.valid || after == before) return;
  ++metrics_.commits;
  metrics_.version = after.id.version;
}

void Follower::count(UpdateReport& report) {
  if (metrics_file_) {
    const Status written = metrics_file_->write(metrics_of(report, process_->rank()));
    if (!written.ok()) report.notes.push_back(written.to_string());
  }
  metrics_.version = report.version;
  metrics_.newest = std::max<std::uint64_t>(metrics_.newest, report.version);
  ++metrics_.commits;
  metrics_.versions += report.versions;
  metrics_.anchors += report.anchor ? 1 : 0;
  metrics_.changed_units += report.changed_units;
  metrics_.delta_bytes += report.delta_bytes;
  metrics_.wire_bytes += report.wire_bytes;
  metrics_.fetch_ms += report.fetch_ms;
  metrics_.stage_ms += report.stage_ms;
  metrics_.pause_ms += report.pause_ms;
  metrics_.apply_ms += report.apply_ms;
  metrics_.resume_ms += report.resume_ms;
  metrics_.longest_pause_ms =
      std::max(metrics_.longest_pause_ms, report.pause_ms + report.apply_ms + report.resume_ms);
  last_ = report;
}

Status Follower::rollback() {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  Status done = receiver_->rollback();
  if (done.ok()) ++metrics_.rollbacks;
  if (done.ok()) staged_ = false;
  metrics_.version = target_->state().id.version;
  return done;
}

Status Follower::keep_alive() {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  alive_ = Deadline::after(kSignOfLife);
  return receiver_->report();
}

// One that the road does not take stops nothing: a directory may be readable only.
void Follower::give_sign_of_life() {
  if (!alive_->expired()) return;
  if (!receiver_->report().ok()) ++metrics_.unheard;
  alive_ = Deadline::after(kSignOfLife);
}

// On some file systems the bytes of the trainer's last word come late: until deadlines.fetch has
// passed, one that cannot be read is not there yet.
Result<std::optional<EndOfRun>> Follower::look_for_end() {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  DRIFTLESS_RETURN_IF_ERROR(check_started());
  Result<std::optional<EndOfRun>> end =
      driftless::look_for_end(*process_, config_, receiver_->run());
  if (end.status().code() != StatusCode::kCorrupt) {
    unreadable_end_.reset();
    return end;
  }
  if (!unreadable_end_) unreadable_end_ = Deadline::after(config_.receiver.fetch_deadline);
  if (unreadable_end_->expired()) return end;
  return std::optional<EndOfRun>();
}

Status Follower::close(std::optional<Wait> wait, bool& closed) {
  closed = false;
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  const bool waits = wait != Wait(0);
  Status left;
  if (receiver_ != nullptr && (waits || !collective())) left = receiver_->leave();
  const bool orderly = waits && phase_ != Phase::kBroken;
  std::unique_ptr<JobProcess> process = std::move(process_);
  drop();
  phase_ = Phase::kClosed;
  closed = true;
  if (process == nullptr || !orderly) return left;
  const Deadline deadline = Deadline::after(wait.value_or(config_.connect_deadline));
  const Status met = process->close(deadline);
  return met.ok() ? left : met;
}

// In the opposite order of their making.
void Follower::drop() {
  receiver_.reset();
  target_.reset();
  road_.reset();
  process_.reset();
}

// Without memory for the last report's notes the rest is shown, and the report before.
void Follower::show() noexcept {
  const std::scoped_lock lock(view_mutex_);
  view_.started = phase_ == Phase::kStarted;
  view_.staged = staged_;
  if (target_ != nullptr) view_.state = target_->state();
  if (receiver_ != nullptr) view_.run = receiver_->run();
  if (process_ != nullptr) view_.rank = process_->rank();
  view_.metrics = metrics_;
  try {
    view_.last = last_;
  } catch (...) {
    return;
  }
}

FollowerView Follower::look() const {
  const std::scoped_lock lock(view_mutex_);
  return view_;
}

}  // namespace driftless::c_abi
