// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/control.h"

namespace driftless::nccl {

using std::chrono::milliseconds;

LeaderControl::LeaderControl(const NcclOptions& options, unsigned ranks, std::unique_ptr<Hub> hub,
                             std::shared_ptr<EndNote> end)
    : options_(options),
      ranks_(ranks),
      session_(random_hash128().low),
      hub_(std::move(hub)),
      end_(end == nullptr ? std::make_shared<EndNote>() : std::move(end)),
      ring_("nccl", options.ring_bytes, options.ring_versions),
      thread_([this] { run(); }) {}

LeaderControl::~LeaderControl() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  thread_.join();
}

void LeaderControl::run() {
  for (;;) {
    const std::vector<HubEvent> events = hub_->poll(Deadline::after(milliseconds(20)));
    for (const HubEvent& event : events) handle(event);
    const std::scoped_lock lock(mutex_);
    if (stop_) break;
    remove_silent();
    send_end();
  }
  send_goodbye();
  end_->settle();
}

// Sends the end of the run once, and settles when every receiver has answered. Without this wait
// the process could end too early: if a process ends, TCP may discard what its peers have not read.
void LeaderControl::send_end() {
  const std::optional<std::string> text = end_->text();
  if (!text) return;
  const bool first = !std::exchange(end_sent_, true);
  bool answered = true;
  for (const auto& [peer, known] : peers_) {
    if (!known.greeted || !known.receives) continue;
    if (first) send(peer, {.kind = MessageKind::kEnd, .text = *text});
    answered = answered && known.has_end;
  }
  if (answered) end_->settle();
}

void LeaderControl::send_goodbye() {
  for (const HubEvent& event : hub_->poll(Deadline::after(milliseconds(0)))) handle(event);
  const std::scoped_lock lock(mutex_);
  for (const auto& [peer, known] : peers_) {
    if (known.greeted) send(peer, {.kind = MessageKind::kGoodbye});
  }
}

void LeaderControl::handle(const HubEvent& event) {
  const std::scoped_lock lock(mutex_);
  switch (event.kind) {
    case HubEvent::Kind::kCame: peers_[event.peer].last_message_at = Clock::now(); break;
    case HubEvent::Kind::kWent: remove_peer(event.peer, "its link was lost"); break;
    case HubEvent::Kind::kMessage: {
      const auto found = peers_.find(event.peer);
      if (found == peers_.end()) break;  // dropped meanwhile
      const Result<Message> message = parse_message(event.text);
      if (!message.ok()) {
        hub_->drop(event.peer);
        remove_peer(event.peer, "it sent a malformed message");
        break;
      }
      found->second.last_message_at = Clock::now();
      handle(event.peer, *message);
      break;
    }
  }
  changed_.notify_all();
}

void LeaderControl::handle(std::uint64_t peer, const Message& message) {
  Peer& from = peers_[peer];
  const bool publishes = from.greeted && !from.receives;
  switch (message.kind) {
    case MessageKind::kHello: greet(peer, message); return;
    case MessageKind::kPing: send(peer, {.kind = MessageKind::kPong}); return;
    case MessageKind::kEnd: from.has_end = true; return;
    case MessageKind::kReport: take_report(peer, message); return;
    case MessageKind::kLeave:
      if (from.report) left_.insert(from.report->id);
      from.report.reset();
      remove_member(peer, "it left");
      reply(peer, message.request, {});
      return;
    case MessageKind::kAck: take_ack(peer, message); return;
    case MessageKind::kCommitted:
      if (pending_ && pending_->number == message.attempt) pending_->committed.insert(peer);
      return;
    default: break;
  }
  if (!publishes) return;  // receivers may not send the messages below
  switch (message.kind) {
    case MessageKind::kBegin: {
      const Result<Attempt> attempt = join_attempt(message.id);
      Message more;
      if (attempt.ok()) {
        more.attempt = attempt->number;
        more.generation = attempt->generation;
        more.count = attempt->receivers;
      }
      reply(peer, message.request, attempt.status(), more);
      return;
    }
    case MessageKind::kOffer: reply(peer, message.request, take_offer(message)); return;
    case MessageKind::kFailed:
      if (check_pending(message.attempt).ok()) fail(status_of(message));
      return;
    case MessageKind::kPublished: {
      const std::optional<Hash128> manifest = ring_.manifest(message.id);
      reply(peer, message.request, {}, {.name = manifest ? to_hex(*manifest) : std::string()});
      return;
    }
    default: return;
  }
}

void LeaderControl::greet(std::uint64_t peer, const Message& message) {
  Peer& came = peers_[peer];
  if (came.greeted) return;
  came.greeted = true;
  came.receives = message.count == 0;
  came.member = came.receives;
  const bool ours =
      message.count == ranks_ && message.rank < ranks_ && message.session == options_.start;
  if (!came.receives && !ours) {
    hub_->drop(peer);    // a rank of another job, or of an earlier start of this one
    peers_.erase(peer);  // ignores messages that have already arrived, too
    return;
  }
  send(peer, {.kind = MessageKind::kWelcome,
              .count = run_info_.has_value() ? 1U : 0U,
              .session = session_,
              .text = run_info_.value_or("")});
  if (came.receives && end_sent_) {
    send(peer, {.kind = MessageKind::kEnd, .text = end_->text().value_or("")});
  }
}

void LeaderControl::take_report(std::uint64_t peer, const Message& message) {
  Peer& from = peers_[peer];
  ReceiverReport report{message.name, message.id.version, message.text, message.needs};
  const Status good = check_report(report);
  if (good.ok() && from.receives) {
    // A receiver that was restarted under its id replaces the earlier one.
    for (auto& [other, known] : peers_) {
      if (other != peer && known.report && known.report->id == report.id) known.report.reset();
    }
    left_.erase(report.id);
    from.report = std::move(report);
    from.reported = Clock::now();
    from.member = true;
  }
  reply(peer, message.request, good);
}

void LeaderControl::take_ack(std::uint64_t peer, const Message& message) {
  if (!check_pending(message.attempt).ok() || !pending_->members.contains(peer)) return;
  if (message.code != StatusCode::kOk) {
    fail(status_of(message).with_context(concat("nccl: ", name_of(peer))));
    return;
  }
  const auto offered = pending_->offers.find(message.rank);
  if (offered == pending_->offers.end()) return;
  if (offered->second != message.parts) {
    fail(error(StatusCode::kCorrupt, "nccl: ", name_of(peer), " received parts of rank ",
               message.rank, " for ", to_string(pending_->id),
               " with other hashes than those of the bytes that were sent; publish it again"));
    return;
  }
  pending_->acknowledged[peer].insert(message.rank);
}

void LeaderControl::remove_peer(std::uint64_t peer, const std::string& why) {
  remove_member(peer, why);
  peers_.erase(peer);
}

void LeaderControl::remove_member(std::uint64_t peer, const std::string& why) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.member = false;
  if (!pending_ || !pending_->members.contains(peer)) return;
  const std::string name = name_of(peer);
  pending_->members.erase(peer);
  group_is_broken_ = true;
  const bool arrived = pending_->offers.size() == ranks_ && all_acknowledged();
  if (arrived && !pending_->members.empty()) return;
  fail(error(StatusCode::kIo, "nccl: ", name, " left the group while ", to_string(pending_->id),
             " was sent (", why, "): the next version goes to the remaining receivers"));
}

void LeaderControl::remove_silent() {
  const Clock::time_point now = Clock::now();
  std::vector<std::uint64_t> silent;
  for (const auto& [peer, known] : peers_) {
    // Publisher ranks send messages only while they publish.
    const bool speaks = known.receives || !known.greeted;
    if (speaks && now - known.last_message_at > options_.silence) silent.push_back(peer);
  }
  for (const std::uint64_t peer : silent) {
    hub_->drop(peer);
    remove_peer(peer, concat("it sent no message for ", options_.silence.count(), " ms"));
  }
  if (!silent.empty()) changed_.notify_all();
}

void LeaderControl::send(std::uint64_t peer, const Message& message) {
  hub_->send(peer, to_bytes(message));
}

void LeaderControl::reply(std::uint64_t peer, std::uint64_t request, const Status& status,
                          Message more) {
  more.kind = MessageKind::kReply;
  more.request = request;
  send(peer, with_status(std::move(more), status));
}

std::set<std::uint64_t> LeaderControl::members() const {
  std::set<std::uint64_t> all;
  for (const auto& [peer, known] : peers_) {
    if (known.member) all.insert(peer);
  }
  return all;
}

std::string LeaderControl::names_of(const std::set<std::uint64_t>& peers) const {
  std::string names;
  for (const std::uint64_t peer : peers) names += concat(names.empty() ? "" : ", ", name_of(peer));
  return names.empty() ? "none" : names;
}

std::string LeaderControl::name_of(std::uint64_t peer) const {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.report) {
    return concat("receiver ", found->second.report->id);
  }
  return concat("receiver #", peer, " (which has not reported yet)");
}

}  // namespace driftless::nccl
