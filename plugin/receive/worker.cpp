// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/worker.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/stopwatch.h"
#include "plugin/receive/worker_shares.h"

namespace driftless {
namespace {

constexpr std::size_t kShownConfig = 200;  // bytes of a configuration in a message

// Turns exceptions into a status: a call returns only a reply.
template <typename Work>
auto without_exceptions(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& thrown) {
    return error(StatusCode::kInternal, thrown.what());
  }
}

}  // namespace

Status WorkerHost::start(std::function<void()> work) {
  try {
    std::thread(std::move(work)).detach();
    return {};
  } catch (const std::system_error& failure) {
    return error(StatusCode::kNoSpace, "there is no thread to stage on: ", failure.what());
  }
}

std::shared_ptr<Worker> Worker::make(std::int64_t rank, std::unique_ptr<WorkerHost> host) {
  return std::shared_ptr<Worker>(new Worker(rank, std::move(host)));
}

Worker::Worker(std::int64_t rank, std::unique_ptr<WorkerHost> host) : host_(std::move(host)) {
  now_.rank = rank;
}

// --- the calls

std::string Worker::answer(const std::string& nonce, Remember remember,
                           const std::function<Status(Json& beside)>& work) {
  Json beside = Json::object();
  Status done;
  if (in_call_.test_and_set()) {
    done = error(StatusCode::kBusy, "rank ", now_.rank, " is in another call: one at a time");
  } else {
    done = without_exceptions([&] { return work(beside); });
    if (!done.ok() && remember == Remember::kYes) {
      set([&](WorkerReply& now) { now.error = done.to_string(); });
    }
    in_call_.clear();
  }
  const std::scoped_lock lock(mutex_);
  WorkerReply reply = now_;
  reply.nonce = nonce;
  if (!done.ok()) reply.error = done.to_string();
  return reply_json(reply, beside);
}

std::string Worker::open(const std::string& config, std::span<const std::string> sets,
                         const std::string& nonce, const std::string& take_over) {
  return answer(nonce, Remember::kNo, [&](Json&) { return open_now(config, sets, take_over); });
}

std::string Worker::stage(Wait timeout, const std::string& nonce, const std::string& ticket) {
  return answer(nonce, Remember::kNo, [&](Json&) { return stage_now(timeout, nonce, ticket); });
}

std::string Worker::status(const std::string& nonce) const {
  const std::scoped_lock lock(mutex_);
  WorkerReply reply = now_;
  reply.nonce = nonce;
  return reply_json(reply);
}

std::string Worker::commit(std::optional<std::int64_t> version, const std::string& nonce,
                           const std::string& ticket) {
  return answer(nonce, Remember::kYes, [&](Json&) { return commit_now(version, ticket); });
}

std::string Worker::refuse(const std::string& why, const std::string& nonce) {
  return answer(nonce, Remember::kYes, [&](Json&) { return error(StatusCode::kUnsupported, why); });
}

std::string Worker::rollback(std::int64_t version, const std::string& nonce) {
  return answer(nonce, Remember::kNo, [&](Json&) { return rollback_now(version); });
}

std::string Worker::shares(bool sweep, const std::string& nonce) {
  return answer(nonce, Remember::kYes, [&](Json& beside) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_ready());
    if (sweep) DRIFTLESS_RETURN_IF_ERROR(follow_moves());  // sweep the tensors that the engine uses
    Status outcome = shares_now(sweep, beside);
    look();  // weights that differ from their digests are no version
    return outcome;
  });
}

std::string Worker::read(const std::string& tensor, std::uint64_t first, std::uint64_t units,
                         const std::string& nonce) {
  return answer(nonce, Remember::kNo, [&](Json& beside) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_ready());
    DRIFTLESS_RETURN_IF_ERROR(follow_moves());
    DRIFTLESS_ASSIGN_OR_RETURN(const auto use, host_->use());
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedTarget* const mapped, mapped_target());
    DRIFTLESS_ASSIGN_OR_RETURN(beside, read_json(*mapped, tensor, first, units));
    return {};
  });
}

std::string Worker::close(const std::string& nonce) {
  return answer(nonce, Remember::kNo, [&](Json&) { return close_now(); });
}

bool Worker::wait(Wait timeout) const {
  std::unique_lock lock(mutex_);
  return wait_until(ended_, lock, Deadline::after(timeout).at(), [&] { return threads_ == 0; });
}

// --- their work

Status Worker::check_ready() const {
  const std::scoped_lock lock(mutex_);
  if (receiver_ == nullptr) {
    return error(StatusCode::kInvalidArgument, "rank ", now_.rank,
                 " follows no run: call open() first",
                 now_.error ? concat(" (", *now_.error, ")") : "");
  }
  if (now_.state != WorkerState::kStaging) return {};
  return error(StatusCode::kBusy, "rank ", now_.rank, " is still staging: ask again");
}

Result<MappedTarget*> Worker::mapped_target() {
  auto* const mapped = dynamic_cast<MappedTarget*>(&host_->target());
  if (mapped != nullptr) return mapped;
  return error(StatusCode::kUnsupported,
               "a checkpoint is read by driftless verify, not by a sweep");
}

Status Worker::open_now(const std::string& config, std::span<const std::string> sets,
                        const std::string& take_over) {
  std::pair asked(config, std::vector<std::string>(sets.begin(), sets.end()));
  if (receiver_ != nullptr && opened_ == asked) return {};
  DRIFTLESS_RETURN_IF_ERROR(close_now());
  DRIFTLESS_ASSIGN_OR_RETURN(receiver_, host_->open(config, sets, take_over));
  receiver_->offer_nothing();  // the engine may move its weights at any time
  opened_ = std::move(asked);
  auto ways = host_->ways();
  set([&](WorkerReply& now) {
    now.state = WorkerState::kIdle;
    now.error.reset();
    now.ways = std::move(ways);
  });
  look();
  return {};
}

Status Worker::follow_moves() {
  Result<std::vector<std::string>> moved = host_->follow(*receiver_);
  auto ways = host_->ways();
  set([&](WorkerReply& now) {
    now.ways = std::move(ways);
    if (moved.ok()) now.moved = std::move(*moved);
  });
  look();
  return moved.status();
}

Status Worker::stage_now(Wait timeout, const std::string& nonce, const std::string& ticket) {
  DRIFTLESS_RETURN_IF_ERROR(check_ready());
  DRIFTLESS_RETURN_IF_ERROR(follow_moves());
  DRIFTLESS_ASSIGN_OR_RETURN(use_, host_->use());
  ticket_ = ticket;
  set([&](WorkerReply& now) {
    now.state = WorkerState::kStaging;
    now.error.reset();
    now.staged_version.reset();
    ++threads_;
  });
  Status started = host_->start(
      [self = shared_from_this(), timeout, nonce] { self->stage_on_thread(timeout, nonce); });
  if (started.ok()) return {};
  use_.reset();
  set([&](WorkerReply& now) {
    now.state = WorkerState::kFailed;
    --threads_;
  });
  return started;
}

void Worker::stage_on_thread(Wait timeout, const std::string& nonce) {
  Stopwatch watch;
  const Result<bool> staged =
      without_exceptions([&] { return receiver_->stage(Deadline::after(timeout)); });
  const double staging_ms = watch.lap_ms();
  look();
  std::string waits;
  if (!staged.ok()) waits = staged.status().to_string();
  if (staged.ok() && !*staged) waits = nothing_newer();
  const std::optional<std::uint64_t> version = receiver_->staged_version();
  use_.reset();
  std::string before, reply;
  set([&](WorkerReply& now) {  // in any state but kStaging, other calls may use the receiver
    before = std::exchange(now.waits, waits);
    now.timings = {{"staging_ms", staging_ms}};
    now.staged_version = staged.ok() && *staged ? version : std::nullopt;
    now.error.reset();  // also of a call that was refused meanwhile
    if (!staged.ok()) now.error = staged.status().to_string();
    now.state = !staged.ok() ? WorkerState::kFailed
                : *staged    ? WorkerState::kStaged
                             : WorkerState::kIdle;
    WorkerReply answered = now;
    answered.nonce = nonce;
    reply = reply_json(answered);
  });
  if (!waits.empty() && waits != before) {
    host_->log(concat("driftless: rank ", now_.rank, " waits: ", waits));
  }
  host_->staged(reply);
  set([&](WorkerReply&) { --threads_; });
  ended_.notify_all();
}

std::string Worker::nothing_newer() const {
  const bool none = now_.version == kTornVersion || (now_.run.empty() && now_.digest.empty());
  const std::string& config = opened_.first;
  const std::size_t first = std::min(config.find_first_not_of(" \n"), config.size());
  return concat("nothing ",
                none ? std::string("is there that a rank without a version can begin with")
                     : concat("newer than version ", now_.version, " is there"),
                "; it follows run ", now_.follows, " through ", config.substr(first, kShownConfig));
}

Status Worker::check_staged(std::optional<std::int64_t> version, const std::string& ticket) const {
  if (ticket != ticket_) {
    return error(StatusCode::kInvalidArgument, "rank ", now_.rank,
                 " has nothing staged for this commit: stage again");
  }
  if (!now_.staged_version) {
    return error(StatusCode::kInvalidArgument, "rank ", now_.rank, " is at version ", now_.version,
                 " and has nothing staged", now_.error ? concat(": ", *now_.error) : "");
  }
  if (!version || *version == static_cast<std::int64_t>(*now_.staged_version)) return {};
  return error(StatusCode::kInvalidArgument, "rank ", now_.rank, " has version ",
               *now_.staged_version, " staged, not ", *version, ": stage again");
}

Status Worker::commit_now(std::optional<std::int64_t> version, const std::string& ticket) {
  DRIFTLESS_RETURN_IF_ERROR(check_ready());
  const bool again = ticket == ticket_ && now_.state == WorkerState::kCommitted &&
                     !now_.staged_version && version == now_.version;
  if (again) return {};  // the first reply was lost
  DRIFTLESS_RETURN_IF_ERROR(check_staged(version, ticket));
  const Held was = held();
  const Result<UpdateReport> report = [&]() -> Result<UpdateReport> {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto use, host_->use());
    return without_exceptions([&] { return receiver_->commit(); });
  }();
  Status done = report.ok() ? written(true) : report.status();
  look();
  // commit() may return an error although the commit holds: compare the versions.
  const bool holds = held() != was && now_.version != kTornVersion;
  before_ = holds ? std::optional(was.version) : std::nullopt;
  set([&](WorkerReply& now) {
    now.staged_version.reset();
    now.state = holds ? WorkerState::kCommitted : WorkerState::kFailed;
    if (!done.ok()) return;
    now.error.reset();
    now.timings.insert({{"fetch_ms", report->fetch_ms},
                        {"stage_ms", report->stage_ms},
                        {"pause_ms", report->pause_ms},
                        {"apply_ms", report->apply_ms},
                        {"resume_ms", report->resume_ms}});
  });
  return done;
}

Status Worker::take_back() {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto use, host_->use());
  return without_exceptions([&] { return receiver_->rollback(); });
}

Status Worker::written(bool undo) {
  holds_none_ = true;  // until the engine has accepted a whole version
  const auto call_written = [this] {
    return without_exceptions([this] { return host_->written(); });
  };
  Status taken = call_written();
  if (taken.ok() || !undo) {
    holds_none_ = !taken.ok();
    return taken;
  }
  holds_none_ = !take_back().ok() || !call_written().ok();
  return taken;
}

Status Worker::rollback_now(std::int64_t version) {
  DRIFTLESS_RETURN_IF_ERROR(check_ready());
  const bool committed = now_.state == WorkerState::kCommitted;
  const auto settle = [&](WorkerState state) {
    set([&](WorkerReply& now) {
      now.state = state;
      now.staged_version.reset();
      now.error.reset();
    });
    return Status();
  };
  if (now_.staged_version && version == now_.version) {
    DRIFTLESS_RETURN_IF_ERROR(take_back());
    return settle(WorkerState::kIdle);
  }
  const bool last = committed && version == before_;  // also if it took over another run
  if (version == now_.version && !last) {
    return settle(committed ? WorkerState::kCommitted : WorkerState::kIdle);
  }
  if (!last) {
    return error(StatusCode::kInvalidArgument, "rank ", now_.rank, " is at version ", now_.version,
                 " and cannot go back to ", version,
                 ": only the last commit can be taken back; publish an anchor");
  }
  Status back = take_back();
  if (back.ok()) back = written(false);
  look();
  DRIFTLESS_RETURN_IF_ERROR(back);
  before_.reset();
  return settle(WorkerState::kIdle);
}

Status Worker::shares_now(bool sweep, Json& beside) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto use, host_->use());
  DRIFTLESS_ASSIGN_OR_RETURN(MappedTarget* const mapped, mapped_target());
  Shares shares;
  const std::string unread = host_->unread();
  for (std::uint32_t i = 0; !unread.empty() && i < mapped->layout()->size(); ++i) {
    shares.unproven.push_back({i, unread});
  }
  if (unread.empty() && sweep) {
    DRIFTLESS_ASSIGN_OR_RETURN(shares, mapped->sweep());
  } else if (unread.empty()) {
    shares = mapped->tracked();
  }
  beside = shares_json(*mapped->layout(), shares, receiver_);
  return {};
}

void Worker::look() {
  const TargetState state = receiver_->state();
  held_one_ = held_one_ || state.valid;
  const bool torn = holds_none_ || (held_one_ && !state.valid);
  const bool known = state.valid && !state.partial && !torn;
  set([&](WorkerReply& now) {
    now.version = torn ? kTornVersion : static_cast<std::int64_t>(state.id.version);
    now.digest = known ? to_hex(state.digest) : "";
    now.run = state.id.run.is_zero() ? "" : to_hex(state.id.run);
    now.follows = to_hex(receiver_->run());
  });
}

Status Worker::close_now() {
  {
    const std::scoped_lock lock(mutex_);
    if (threads_ > 0) {
      return error(StatusCode::kBusy, "rank ", now_.rank, " is still staging: ask again");
    }
  }
  if (receiver_ != nullptr) {
    static_cast<void>(receiver_->leave());
    receiver_ = nullptr;
    host_->close();
  }
  before_.reset();
  ticket_.clear();
  set([&](WorkerReply& now) {
    now.state = WorkerState::kClosed;
    now.staged_version.reset();
    now.follows.clear();
  });
  return {};
}

}  // namespace driftless
