// SPDX-License-Identifier: Apache-2.0
// Publications in LeaderControl: from begin() to the commit or the failure of an attempt.

#include "collectives/nccl/control.h"
#include "core/wait_visibly.h"

namespace driftless::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProbePatience{3'000};

std::uint64_t bytes_of(const std::vector<PartReceipt>& parts) {
  std::uint64_t sum = 0;
  for (const PartReceipt& part : parts) sum += part.size_bytes;
  return sum;
}

}  // namespace

Status LeaderControl::announce(std::string_view run_info) {
  const std::scoped_lock lock(mutex_);
  if (run_info_.has_value()) {
    if (*run_info_ == run_info) return {};
    return error(StatusCode::kAlreadyExists, "nccl: another run was announced here already");
  }
  run_info_ = run_info;
  for (const auto& [peer, known] : peers_) {
    if (known.receives) {
      send(peer, {.kind = MessageKind::kAnnounce, .text = std::string(run_info)});
    }
  }
  return {};
}

Result<Attempt> LeaderControl::begin(const PublicationId& id, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  drop_pending();
  DRIFTLESS_RETURN_IF_ERROR(ring_.check_new(id));
  if (!began_) {
    const auto enough = [&] { return members().size() >= options_.receivers; };
    const auto whom = [&] {
      return concat("nccl: ", members().size(), " of ", options_.receivers,
                    " receivers have joined (", names_of(members()), "); ", to_string(id),
                    " waits for them");
    };
    Waiting waiting;
    if (!wait_visibly(waiting, changed_, lock, deadline, enough, whom))
      return deadline.check(whom());
  }
  if (began_ && group_is_broken_) probe_members(lock, deadline);
  began_ = true;
  renew_group();
  pending_ = Pending{};
  pending_->number = ++attempts_;
  pending_->id = id;
  pending_->members = group_;
  pending_->had_members = !group_.empty();
  return join_attempt(id);
}

// Removes members that do not answer. Called after a failure: a hub of files or MPI does not show
// which peer has died, and a group with a dead member would fail again.
void LeaderControl::probe_members(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  const Clock::time_point asked = Clock::now();
  for (const std::uint64_t peer : members()) send(peer, {.kind = MessageKind::kProbe});
  const auto silent = [&] {
    std::set<std::uint64_t> some = members();
    std::erase_if(some, [&](std::uint64_t peer) { return peers_[peer].last_message_at > asked; });
    return some;
  };
  const Deadline patience = deadline.sooner(std::min(options_.silence, kProbePatience));
  changed_.wait_until(lock, patience.at(), [&] { return silent().empty(); });
  for (const std::uint64_t peer : silent()) {
    hub_->drop(peer);
    remove_peer(peer, "it did not answer");
  }
}

void LeaderControl::renew_group() {
  std::set<std::uint64_t> now = members();
  if (!group_is_broken_ && now == group_) return;
  group_ = std::move(now);
  group_is_broken_ = false;
  ++generation_;
}

Result<Attempt> LeaderControl::join_attempt(const PublicationId& id) const {
  if (pending_ && pending_->id == id) {
    return Attempt{pending_->number, generation_, static_cast<unsigned>(group_.size())};
  }
  DRIFTLESS_RETURN_IF_ERROR(ring_.check_new(id));
  return error(StatusCode::kInvalidArgument, "nccl: the leader has not begun ", to_string(id));
}

Status LeaderControl::check_pending(std::uint64_t attempt) const {
  if (!pending_ || pending_->number != attempt) {
    return error(StatusCode::kBusy, "nccl: the publication was aborted; begin it again");
  }
  return pending_->failure;
}

Status LeaderControl::check(std::uint64_t attempt) {
  const std::scoped_lock lock(mutex_);
  return check_pending(attempt);
}

Status LeaderControl::offer(Message offer, const Deadline& deadline) {
  const std::scoped_lock lock(mutex_);
  offer.wait_ms = static_cast<std::uint64_t>(deadline.remaining().count());
  return take_offer(std::move(offer));
}

Status LeaderControl::take_offer(Message offer) {
  DRIFTLESS_RETURN_IF_ERROR(check_pending(offer.attempt));
  if (offer.rank >= ranks_) {
    return error(StatusCode::kInvalidArgument, "nccl: no rank ", offer.rank);
  }
  if (offer.generation != generation_) {
    return error(StatusCode::kInternal, "nccl: rank ", offer.rank, " offers for group ",
                 offer.generation, ", this is ", generation_);
  }
  pending_->offers[offer.rank] = offer.parts;
  // Forwarded to the receivers.
  offer.kind = MessageKind::kReceive;
  offer.request = 0;
  offer.index = 0;
  offer.count = static_cast<std::uint32_t>(group_.size()) + 1;
  for (const std::uint64_t peer : group_) {
    ++offer.index;  // from 1; the publisher rank has 0
    send(peer, offer);
  }
  return {};
}

void LeaderControl::failed(std::uint64_t attempt, const Status& why) {
  const std::scoped_lock lock(mutex_);
  if (check_pending(attempt).ok()) fail(why);
}

void LeaderControl::fail(const Status& why) {
  if (pending_->failure.ok()) pending_->failure = why;
  group_is_broken_ = true;
  for (const std::uint64_t peer : pending_->members) {
    send(peer, {.kind = MessageKind::kDrop, .attempt = pending_->number});
  }
  // Publisher ranks that wait for other members of their communicator need not wait any longer.
  for (const auto& [peer, known] : peers_) {
    if (!known.greeted || known.receives) continue;
    send(peer,
         with_status({.kind = MessageKind::kDrop, .attempt = pending_->number}, pending_->failure));
  }
  changed_.notify_all();
}

void LeaderControl::drop_pending() {
  if (!pending_) return;
  // Broadcasts in progress are aborted, and an aborted communicator is not reused.
  const bool whole = pending_->offers.empty() || all_acknowledged();
  if (!whole && pending_->failure.ok()) {
    fail(error(StatusCode::kBusy, "nccl: ", to_string(pending_->id), " was aborted"));
  } else {
    for (const std::uint64_t peer : pending_->members) {
      send(peer, {.kind = MessageKind::kDrop, .attempt = pending_->number});
    }
  }
  pending_.reset();
}

void LeaderControl::abort(std::uint64_t attempt) {
  const std::scoped_lock lock(mutex_);
  if (pending_ && pending_->number == attempt) drop_pending();
  changed_.notify_all();
}

// The members that have not acknowledged all offered parts.
std::set<std::uint64_t> LeaderControl::unacknowledged() const {
  std::set<std::uint64_t> some = pending_->members;
  std::erase_if(some, [&](std::uint64_t peer) {
    const auto found = pending_->acknowledged.find(peer);
    const std::size_t ranks = found == pending_->acknowledged.end() ? 0 : found->second.size();
    return ranks == pending_->offers.size();
  });
  return some;
}
bool LeaderControl::all_acknowledged() const { return unacknowledged().empty(); }

Status LeaderControl::give_up_waiting(const Deadline& deadline) {
  const std::set<std::uint64_t> late = unacknowledged();
  fail(deadline.check(concat("nccl: ", to_string(pending_->id), " was not acknowledged by ",
                             names_of(late), ", now removed from the group")));
  Status why = pending_->failure;
  for (const std::uint64_t peer : late) {
    hub_->drop(peer);
    remove_peer(peer, "it was late");
  }
  return why;
}

Status LeaderControl::seal(std::uint64_t attempt, std::string_view manifest,
                           const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  DRIFTLESS_RETURN_IF_ERROR(check_pending(attempt));
  if (pending_->offers.size() != ranks_) {
    return error(StatusCode::kInvalidArgument, "nccl: ", pending_->offers.size(), " of ", ranks_,
                 " ranks have flushed ", to_string(pending_->id));
  }
  const auto over = [&] { return !check_pending(attempt).ok() || all_acknowledged(); };
  Waiting waiting;
  const bool ended = wait_visibly(waiting, changed_, lock, deadline, over, [&] {
    return concat("nccl: ", to_string(pending_->id), " is not acknowledged by ",
                  names_of(unacknowledged()));
  });
  DRIFTLESS_RETURN_IF_ERROR(check_pending(attempt));
  if (!ended) return give_up_waiting(deadline);
  if (pending_->members.empty() && pending_->had_members) {
    return error(StatusCode::kIo, "nccl: no receiver is left that has ", to_string(pending_->id));
  }
  commit(manifest);
  // The publication is visible from here on. Members that do not confirm the commit before
  // the deadline are dropped.
  const auto seen = [&] {
    return std::ranges::all_of(
        pending_->members, [&](std::uint64_t peer) { return pending_->committed.contains(peer); });
  };
  changed_.wait_until(lock, deadline.at(), seen);
  for (const std::uint64_t peer : std::set(pending_->members)) {
    if (pending_->committed.contains(peer)) continue;
    hub_->drop(peer);
    pending_->members.erase(peer);
    remove_peer(peer, "it was late");
    group_is_broken_ = true;
  }
  pending_.reset();
  return {};
}

void LeaderControl::commit(std::string_view manifest) {
  std::map<unsigned, std::uint64_t> bytes;
  for (const auto& [rank, parts] : pending_->offers) bytes[rank] = bytes_of(parts);
  ring_.add(pending_->id, xxh3_128(manifest), std::move(bytes));
  const Message message{.kind = MessageKind::kCommit,
                        .attempt = pending_->number,
                        .id = pending_->id,
                        .text = std::string(manifest),
                        .ids = ring_.ids()};
  for (const std::uint64_t peer : pending_->members) send(peer, message);
}

Result<std::optional<Hash128>> LeaderControl::published(const PublicationId& id, const Deadline&) {
  const std::scoped_lock lock(mutex_);
  return ring_.manifest(id);
}

Result<std::vector<ReceiverReport>> LeaderControl::receivers() {
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::vector<ReceiverReport> reports;
  for (auto& [peer, known] : peers_) {
    if (known.report && now - known.reported > options_.patience) known.report.reset();
    if (known.report) reports.push_back(*known.report);
  }
  return reports;
}

std::vector<std::string> LeaderControl::left() const {
  const std::scoped_lock lock(mutex_);
  return {left_.begin(), left_.end()};
}

}  // namespace driftless::nccl
