#include "collectives/nccl/board.h"

#include <algorithm>
#include <system_error>
#include <utility>

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

Result<std::unique_ptr<Board>> Board::start(const NcclOptions& options, unsigned ranks,
                                            std::unique_ptr<Hub> hub) {
  std::unique_ptr<Board> board(new Board(options, ranks, std::move(hub)));
  try {
    board->thread_ = std::thread([made = board.get()] { made->run(); });
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "nccl: no thread for the leader: ", failure.what());
  }
  return board;
}

Board::Board(const NcclOptions& options, unsigned ranks, std::unique_ptr<Hub> hub)
    : options_(options),
      ranks_(ranks),
      session_(random_hash128().low),
      hub_(std::move(hub)),
      shelf_(options.ring_bytes, options.ring_versions) {}

Board::~Board() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Board::run() {
  for (;;) {
    const std::vector<HubEvent> events = hub_->poll(Deadline::after(milliseconds(20)));
    for (const HubEvent& event : events) handle(event);
    const std::scoped_lock lock(mutex_);
    if (stop_) return;
    remove_silent();
  }
}

void Board::handle(const HubEvent& event) {
  const std::scoped_lock lock(mutex_);
  switch (event.kind) {
    case HubEvent::Kind::kCame: peers_[event.peer].heard = Clock::now(); break;
    case HubEvent::Kind::kWent: remove_peer(event.peer, "its link was lost"); break;
    case HubEvent::Kind::kSaid: {
      const auto found = peers_.find(event.peer);
      if (found == peers_.end()) break;  // dropped meanwhile
      const Result<Message> message = parse_message(event.text);
      if (!message.ok()) {
        hub_->drop(event.peer);
        remove_peer(event.peer, "it sent a malformed message");
        break;
      }
      found->second.heard = Clock::now();
      handle(event.peer, *message);
      break;
    }
  }
  changed_.notify_all();
}

void Board::handle(std::uint64_t peer, const Message& message) {
  Peer& said = peers_[peer];
  const bool publishes = said.greeted && !said.receives;
  switch (message.kind) {
    case MessageKind::kHello: greet(peer, message); return;
    case MessageKind::kPing: send(peer, {.kind = MessageKind::kPong}); return;
    case MessageKind::kReport: take_report(peer, message); return;
    case MessageKind::kLeave:
      said.report.reset();
      remove_member(peer, "it left");
      reply(peer, message.request, {});
      return;
    case MessageKind::kAck: take_ack(peer, message); return;
    case MessageKind::kCommitted:
      if (pending_ && pending_->number == message.attempt) pending_->committed.insert(peer);
      return;
    default: break;
  }
  if (!publishes) return;  // what follows is not a receiver's to say
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
    case MessageKind::kOffer:
      reply(peer, message.request,
            take_offer(message.rank,
                       {message.attempt, message.generation, message.meeting, message.parts},
                       message.wait_ms));
      return;
    case MessageKind::kFailed:
      if (check_pending(message.attempt).ok()) fail(status_of(message));
      return;
    case MessageKind::kPublished:
      reply(peer, message.request, {}, {.count = shelf_.holds(message.id) ? 1U : 0U});
      return;
    default: return;
  }
}

void Board::greet(std::uint64_t peer, const Message& message) {
  Peer& came = peers_[peer];
  if (came.greeted) return;
  came.greeted = true;
  came.receives = message.count == 0;
  came.member = came.receives;
  if (!came.receives && (message.count != ranks_ || message.rank >= ranks_)) {
    hub_->drop(peer);  // it belongs to another job
    return;
  }
  send(peer, {.kind = MessageKind::kWelcome,
              .count = run_info_.has_value() ? 1U : 0U,
              .session = session_,
              .text = run_info_.value_or("")});
}

void Board::take_report(std::uint64_t peer, const Message& message) {
  Peer& said = peers_[peer];
  ReceiverReport report{message.name, message.id.version, message.text};
  const Status good = check_report(report);
  if (good.ok() && said.receives) {
    // A receiver that was started again under its name has taken the place of its forerunner.
    for (auto& [other, known] : peers_) {
      if (other != peer && known.report && known.report->id == report.id) known.report.reset();
    }
    said.report = std::move(report);
    said.reported = Clock::now();
    said.member = true;
  }
  reply(peer, message.request, good);
}

void Board::take_ack(std::uint64_t peer, const Message& message) {
  if (!check_pending(message.attempt).ok() || !pending_->members.contains(peer)) return;
  if (message.code != StatusCode::kOk) {
    fail(status_of(message).with_context(concat("nccl: ", name_of(peer))));
    return;
  }
  const auto offered = pending_->offers.find(message.rank);
  if (offered == pending_->offers.end()) return;
  if (offered->second != message.parts) {
    fail(error(StatusCode::kCorrupt, "nccl: what ", name_of(peer), " received of rank ",
               message.rank, " for ", to_string(pending_->id),
               " has other hashes than what was sent; publish it again"));
    return;
  }
  pending_->acknowledged[peer].insert(message.rank);
}

void Board::remove_peer(std::uint64_t peer, const std::string& why) {
  remove_member(peer, why);
  peers_.erase(peer);
}

void Board::remove_member(std::uint64_t peer, const std::string& why) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.member = false;
  if (!pending_ || !pending_->members.contains(peer)) return;
  const std::string name = name_of(peer);
  pending_->members.erase(peer);
  group_is_broken_ = true;
  const bool arrived = pending_->offers.size() == ranks_ && all_acknowledged();
  if (arrived && !pending_->members.empty()) return;
  fail(error(StatusCode::kIo, "nccl: ", name, " went while ", to_string(pending_->id),
             " travelled (", why, "): the next version goes to who is there"));
}

void Board::remove_silent() {
  const Clock::time_point now = Clock::now();
  std::vector<std::uint64_t> silent;
  for (const auto& [peer, known] : peers_) {
    // Publisher ranks speak only when they publish.
    const bool speaks = known.receives || !known.greeted;
    if (speaks && now - known.heard > options_.silence) silent.push_back(peer);
  }
  for (const std::uint64_t peer : silent) {
    hub_->drop(peer);
    remove_peer(peer, concat("nothing was heard of it for ", options_.silence.count(), " ms"));
  }
  if (!silent.empty()) changed_.notify_all();
}

void Board::send(std::uint64_t peer, const Message& message) {
  hub_->send(peer, to_bytes(message));
}

void Board::reply(std::uint64_t peer, std::uint64_t request, const Status& status, Message more) {
  more.kind = MessageKind::kReply;
  more.request = request;
  more.code = status.code();
  more.text = status.message();
  send(peer, more);
}

std::set<std::uint64_t> Board::members() const {
  std::set<std::uint64_t> all;
  for (const auto& [peer, known] : peers_) {
    if (known.member) all.insert(peer);
  }
  return all;
}

std::string Board::name_of(std::uint64_t peer) const {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.report) {
    return concat("receiver ", found->second.report->id);
  }
  return concat("receiver #", peer, " (which has not reported yet)");
}

Status Board::announce(std::string_view run_info) {
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

Result<Attempt> Board::begin(const PublicationId& id, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  drop_pending();
  DRIFTLESS_RETURN_IF_ERROR(shelf_.check_new(id));
  if (!began_) {
    const auto enough = [&] { return members().size() >= options_.receivers; };
    if (!changed_.wait_until(lock, deadline.at(), enough)) {
      return deadline.check(concat("nccl: ", members().size(), " of ", options_.receivers,
                                   " receivers have joined; ", to_string(id), " waits for them"));
    }
  }
  if (began_ && group_is_broken_) probe_members(lock, deadline);
  began_ = true;
  renew_group();
  pending_.emplace();
  pending_->number = ++attempts_;
  pending_->id = id;
  pending_->members = group_;
  pending_->had_members = !group_.empty();
  return join_attempt(id);
}

// After a failure: a rendezvous of files or MPI does not tell who has died, and a group with a dead
// member would fail again.
void Board::probe_members(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  const Clock::time_point asked = Clock::now();
  for (const std::uint64_t peer : members()) send(peer, {.kind = MessageKind::kProbe});
  const auto silent = [&] {
    std::set<std::uint64_t> some = members();
    std::erase_if(some, [&](std::uint64_t peer) { return peers_[peer].heard > asked; });
    return some;
  };
  const Deadline patience = deadline.sooner(std::min(options_.silence, kProbePatience));
  changed_.wait_until(lock, patience.at(), [&] { return silent().empty(); });
  for (const std::uint64_t peer : silent()) {
    hub_->drop(peer);
    remove_peer(peer, "it did not answer");
  }
}

void Board::renew_group() {
  std::set<std::uint64_t> now = members();
  if (!group_is_broken_ && now == group_) return;
  group_ = std::move(now);
  group_is_broken_ = false;
  ++generation_;
}

Result<Attempt> Board::join_attempt(const PublicationId& id) const {
  if (pending_ && pending_->id == id) {
    return Attempt{pending_->number, generation_, static_cast<unsigned>(group_.size())};
  }
  DRIFTLESS_RETURN_IF_ERROR(shelf_.check_new(id));
  return error(StatusCode::kInvalidArgument, "nccl: the leader has not begun ", to_string(id));
}

Status Board::check_pending(std::uint64_t attempt) const {
  if (!pending_ || pending_->number != attempt) {
    return error(StatusCode::kBusy, "nccl: the publication was aborted; begin it again");
  }
  return pending_->failure;
}

Status Board::check(std::uint64_t attempt) {
  const std::scoped_lock lock(mutex_);
  return check_pending(attempt);
}

Status Board::offer(const Offer& offer, const Deadline& deadline) {
  const std::scoped_lock lock(mutex_);
  return take_offer(0, offer, static_cast<std::uint64_t>(deadline.remaining().count()));
}

Status Board::take_offer(unsigned rank, const Offer& offer, std::uint64_t wait_ms) {
  DRIFTLESS_RETURN_IF_ERROR(check_pending(offer.attempt));
  if (rank >= ranks_) return error(StatusCode::kInvalidArgument, "nccl: no rank ", rank);
  if (offer.generation != generation_) {
    return error(StatusCode::kInternal, "nccl: rank ", rank, " offers for group ", offer.generation,
                 ", this is ", generation_);
  }
  pending_->offers[rank] = offer.parts;
  Message message;
  message.kind = MessageKind::kReceive;
  message.attempt = offer.attempt;
  message.rank = rank;
  message.generation = offer.generation;
  message.meeting = offer.meeting;
  message.count = static_cast<std::uint32_t>(group_.size()) + 1;
  message.wait_ms = wait_ms;
  message.parts = offer.parts;
  for (const std::uint64_t peer : group_) {
    ++message.index;  // from 1; the publisher rank has 0
    send(peer, message);
  }
  return {};
}

void Board::failed(std::uint64_t attempt, const Status& why) {
  const std::scoped_lock lock(mutex_);
  if (check_pending(attempt).ok()) fail(why);
}

void Board::fail(const Status& why) {
  if (pending_->failure.ok()) pending_->failure = why;
  group_is_broken_ = true;
  for (const std::uint64_t peer : pending_->members) {
    send(peer, {.kind = MessageKind::kDrop, .attempt = pending_->number});
  }
  // Publisher ranks that wait for the others of their communicator need not wait longer.
  for (const auto& [peer, known] : peers_) {
    if (!known.greeted || known.receives) continue;
    send(peer, {.kind = MessageKind::kDrop,
                .code = pending_->failure.code(),
                .attempt = pending_->number,
                .text = std::string(pending_->failure.message())});
  }
  changed_.notify_all();
}

void Board::drop_pending() {
  if (!pending_) return;
  // What still travels is cut off, and a communicator that was cut off is not used again.
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

void Board::abort(std::uint64_t attempt) {
  const std::scoped_lock lock(mutex_);
  if (pending_ && pending_->number == attempt) drop_pending();
  changed_.notify_all();
}

bool Board::all_acknowledged() const {
  return std::ranges::all_of(pending_->members, [&](std::uint64_t peer) {
    const auto found = pending_->acknowledged.find(peer);
    const std::size_t ranks = found == pending_->acknowledged.end() ? 0 : found->second.size();
    return ranks == pending_->offers.size();
  });
}

Status Board::give_up_waiting(const Deadline& deadline) {
  std::vector<std::uint64_t> silent;
  std::string names;
  for (const std::uint64_t peer : pending_->members) {
    if (pending_->acknowledged[peer].size() == pending_->offers.size()) continue;
    silent.push_back(peer);
    names += concat(names.empty() ? "" : ", ", name_of(peer));
  }
  fail(deadline.check(concat("nccl: ", to_string(pending_->id), " was not acknowledged by ", names,
                             ", which left the group")));
  Status why = pending_->failure;
  for (const std::uint64_t peer : silent) {
    hub_->drop(peer);
    remove_peer(peer, "it was late");
  }
  return why;
}

Status Board::seal(std::uint64_t attempt, std::string_view manifest, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  DRIFTLESS_RETURN_IF_ERROR(check_pending(attempt));
  if (pending_->offers.size() != ranks_) {
    return error(StatusCode::kInvalidArgument, "nccl: ", pending_->offers.size(), " of ", ranks_,
                 " ranks have flushed ", to_string(pending_->id));
  }
  const auto over = [&] { return !check_pending(attempt).ok() || all_acknowledged(); };
  const bool ended = changed_.wait_until(lock, deadline.at(), over);
  DRIFTLESS_RETURN_IF_ERROR(check_pending(attempt));
  if (!ended) return give_up_waiting(deadline);
  if (pending_->members.empty() && pending_->had_members) {
    return error(StatusCode::kIo, "nccl: no receiver is left that has ", to_string(pending_->id));
  }
  commit(manifest);
  // From here on it is published. Who does not say that it is visible there is gone, or will be.
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

void Board::commit(std::string_view manifest) {
  std::map<unsigned, std::uint64_t> bytes;
  for (const auto& [rank, parts] : pending_->offers) bytes[rank] = bytes_of(parts);
  shelf_.add(pending_->id, std::move(bytes));
  Message message;
  message.kind = MessageKind::kCommit;
  message.attempt = pending_->number;
  message.id = pending_->id;
  message.text = manifest;
  message.ids = shelf_.ids();
  for (const std::uint64_t peer : pending_->members) send(peer, message);
}

Result<bool> Board::published(const PublicationId& id, const Deadline&) {
  const std::scoped_lock lock(mutex_);
  return shelf_.holds(id);
}

Result<std::vector<ReceiverReport>> Board::receivers() {
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::vector<ReceiverReport> reports;
  for (auto& [peer, known] : peers_) {
    if (known.report && now - known.reported > options_.patience) known.report.reset();
    if (known.report) reports.push_back(*known.report);
  }
  return reports;
}

}  // namespace driftless::nccl
