// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/abi_receiver.h"

namespace driftless::c_abi {
namespace {

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

}  // namespace

void forget_what_is_not_ours(Config& config) {
  config.target = TargetKind::kMemory;
  config.gpu.snapshot = SnapshotPlace::kHost;
  config.engines.clear();
}

AbiReceiver::Turn::~Turn() {
  if (of_ == nullptr) return;
  of_->show();
  of_->in_use_.clear();
}

Result<AbiReceiver::Turn> AbiReceiver::Turn::take(AbiReceiver& of) {
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
                 "MPI provides no thread support here: all calls must come from the thread that "
                 "called driftless_start()");
  }
  return turn;
}

Result<std::shared_ptr<AbiReceiver>> AbiReceiver::open(const std::string& config_path,
                                                       std::span<const std::string> overrides,
                                                       const AbiOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(Config config,
                             load_config(posix_file_system(), config_path, overrides));
  forget_what_is_not_ours(config);
  if (options.threads != 0) config.receiver.threads = options.threads;
  DRIFTLESS_RETURN_IF_ERROR(check_available(road_table(), config, options.launch, JobRole::kRollout)
                                .with_context(config_path));
  auto receiver = std::make_shared<AbiReceiver>(std::move(config), options);
  receiver->show();
  return receiver;
}

Status AbiReceiver::set_callbacks(const driftless_callbacks& callbacks) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ != Phase::kOpen || process_ != nullptr) {
    return error(StatusCode::kInvalidArgument, "callbacks are set before driftless_start()");
  }
  callbacks_ = callbacks;
  return {};
}

Status AbiReceiver::add(const driftless_tensor& tensor) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ == Phase::kStarted) {
    return error(StatusCode::kInvalidArgument, "tensors are registered before driftless_start()");
  }
  if (phase_ == Phase::kBroken) return check_started();
  return tensors_.add(tensor);
}

Status AbiReceiver::check_started() const {
  if (phase_ == Phase::kStarted) return {};
  if (phase_ == Phase::kBroken) {
    return error(StatusCode::kInvalidArgument,
                 "the receiver can only be closed, since starting failed: ", broken_.to_string());
  }
  return error(StatusCode::kInvalidArgument, "the receiver is not started");
}

// Whether joining is a collective call, which cannot be repeated.
bool AbiReceiver::collective() const { return options_.launch.mpi; }

Status AbiReceiver::meet(const Deadline& deadline) {
  LateHandler late;
  if (callbacks_.late != nullptr) {
    late = [callback = callbacks_.late, user = callbacks_.user](const Status& why) {
      callback(user, why.to_string().c_str());
    };
  }
  tensors_.choose_gpu(config_);
  DRIFTLESS_ASSIGN_OR_RETURN(
      process_, join_job(road_table(), config_, JobRole::kRollout, options_.launch, late));
  DRIFTLESS_ASSIGN_OR_RETURN(joined_, join_road(config_, process_, options_.id, deadline));
  joined_->options.pause = [this] { return pause(); };
  joined_->options.resume = [this] { return resume(); };
  return {};
}

Status AbiReceiver::join(const Deadline& deadline) {
  if (joined_) return {};
  starter_ = std::this_thread::get_id();
  Status made = meet(deadline);
  if (made.ok()) return {};
  if (collective()) {
    phase_ = Phase::kBroken;
    broken_ = made;
  } else {
    process_.reset();
  }
  return made;
}

Status AbiReceiver::start(const std::optional<VersionId>& holds, std::optional<Wait> wait) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  if (phase_ == Phase::kStarted) {
    return error(StatusCode::kInvalidArgument, "the receiver is started already");
  }
  if (phase_ == Phase::kBroken) return check_started();
  if (config_.frames_on_device() && tensors_.device() == nullptr) {
    return error(StatusCode::kInvalidArgument,
                 "road.nccl.arrival: device needs tensors on a GPU: others are patched from host "
                 "memory");
  }
  // Report a wrong tensor before any collective call.
  DRIFTLESS_RETURN_IF_ERROR(tensors_.check());
  const Deadline deadline = Deadline::after(wait.value_or(config_.connect_deadline));
  DRIFTLESS_RETURN_IF_ERROR(join(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(target_, tensors_.make_target(holds, config_.receiver.threads));
  auto opened = Receiver::open(joined_->options, *joined_->road, *target_, deadline);
  if (!opened.ok()) {
    target_.reset();
    return opened.status();
  }
  receiver_ = std::move(*opened);
  phase_ = Phase::kStarted;
  return {};
}

Status AbiReceiver::pause() {
  DRIFTLESS_RETURN_IF_ERROR(run_callback(callbacks_.pause, callbacks_.user, "pause"));
  Status waited = tensors_.wait_for_streams();
  if (waited.ok()) return {};
  const Status resumed = resume();
  if (resumed.ok()) return waited;
  return error(waited.code(), waited.message(), "; and ", resumed.message());
}

Status AbiReceiver::resume() { return run_callback(callbacks_.resume, callbacks_.user, "resume"); }

Result<UpdateReport> AbiReceiver::commit() {
  return with_receiver([this](Receiver& receiver) {
    Result<UpdateReport> report = receiver.commit();
    if (report.ok()) last_ = *report;
    return report;
  });
}

Status AbiReceiver::close(std::optional<Wait> wait, bool& closed) {
  closed = false;
  DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
  const bool waits = wait != Wait(0);
  const bool orderly = waits && phase_ != Phase::kBroken;
  Status left;
  if (phase_ == Phase::kStarted && (waits || !collective())) left = receiver_->leave();
  Status met;
  receiver_.reset();
  joined_.reset();
  if (process_ != nullptr && orderly) {
    met = process_->close(Deadline::after(wait.value_or(config_.connect_deadline)));
  }
  process_.reset();
  target_.reset();
  phase_ = Phase::kClosed;
  closed = true;
  return met.ok() ? left : met;
}

// If memory runs out for the new report, the rest is still updated, and the previous report stays.
void AbiReceiver::show() noexcept {
  const std::scoped_lock lock(view_mutex_);
  view_.started = phase_ == Phase::kStarted;
  view_.staged = false;
  if (process_ != nullptr) view_.rank = process_->rank();
  if (view_.started) {
    view_.counts = receiver_->counts();
    view_.state = target_->state();
    view_.run = receiver_->run();
    view_.proven = view_.state.valid && receiver_->unproven().empty();
    view_.staged = receiver_->staged_version().has_value();
  }
  try {
    view_.last = last_;
  } catch (...) {
    return;
  }
}

AbiView AbiReceiver::look() const {
  const std::scoped_lock lock(view_mutex_);
  return view_;
}

}  // namespace driftless::c_abi
