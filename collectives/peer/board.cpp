// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/board.h"

namespace driftless::peer {

using hub::HubEvent;
using std::chrono::milliseconds;

Board::Board(const PeerOptions& options, unsigned ranks, Endpoint endpoint,
             std::unique_ptr<hub::Hub> hub)
    : options_(options),
      ranks_(ranks),
      hub_(std::move(hub)),
      endpoints_{{0U, std::move(endpoint)}},
      ring_("peer", options.ring_bytes, options.ring_versions),
      tracker_(options),
      thread_([this] { run(); }) {}

Board::~Board() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  thread_.join();
  const std::scoped_lock lock(mutex_);
  for (const auto& [peer, known] : peers_) send(peer, {});
}

void Board::run() {
  for (;;) {
    for (const HubEvent& event : hub_->poll(Deadline::after(milliseconds(20)))) handle(event);
    const std::scoped_lock lock(mutex_);
    if (stop_) return;
    remove_silent();
  }
}

void Board::handle(const HubEvent& event) {
  const std::scoped_lock lock(mutex_);
  const auto found = peers_.find(event.peer);
  switch (event.kind) {
    case HubEvent::Kind::kCame: peers_[event.peer].number = event.peer; break;
    case HubEvent::Kind::kWent: remove(event.peer); break;
    case HubEvent::Kind::kMessage: {
      if (found == peers_.end()) break;  // dropped meanwhile
      const Result<Request> request = parse_request(event.text);
      const bool good = request.ok() && greet(found->second, *request);
      if (!good) {
        hub_->drop(event.peer);
        remove(event.peer);
        break;
      }
      if (request->ask == Ask::kHello) break;
      Result<Reply> reply = answer(found->second, *request);
      if (!reply.ok()) {
        reply = Reply{.code = reply.status().code(), .text = std::string(reply.status().message())};
      }
      reply->number = request->number;
      send(event.peer, *reply);
      break;
    }
  }
  changed_.notify_all();
}

void Board::remove(std::uint64_t peer) {
  peers_.erase(peer);
  tracker_.remove(peer);
}

// False: a rank of another job or of an earlier start of this one, or no hello came first.
bool Board::greet(Peer& peer, const Request& request) {
  if (request.ask != Ask::kHello) return peer.greeted;
  if (peer.greeted) return false;
  peer.greeted = true;
  if (request.ranks == 0) return true;
  const unsigned rank = request.endpoint.rank;
  if (request.ranks != ranks_ || rank == 0 || rank >= ranks_ || request.start != options_.start) {
    return false;
  }
  peer.rank = rank;
  endpoints_[rank] = request.endpoint;
  return true;
}

Result<Reply> Board::answer(Peer& peer, const Request& request) {
  switch (request.ask) {
    case Ask::kRunInfo:
      if (!run_info_) return error(StatusCode::kNotFound, "peer: the run is not announced yet");
      return Reply{.text = *run_info_};
    case Ask::kList: return Reply{.ids = ring_.ids()};
    case Ask::kManifest: {
      const auto found = published_.find(request.id);
      if (found == published_.end()) return not_there("peer", request.id);
      return Reply{.text = found->second.manifest};
    }
    case Ask::kEndpoints: return endpoints(request.id);
    case Ask::kSources: {
      const auto found = published_.find(request.id);
      if (found == published_.end()) return not_there("peer", request.id);
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<Source> sources,
                                 tracker_.assign(peer.number, request, found->second.bytes));
      return Reply{.sources = std::move(sources)};
    }
    case Ask::kReport: DRIFTLESS_RETURN_IF_ERROR(take_report(peer, request)); return Reply{};
    case Ask::kLeave: leave(peer, request.name); return Reply{};
    case Ask::kEnd: return Reply{.text = end_};
    default: break;
  }
  if (!peer.rank) {
    return error(StatusCode::kInvalidArgument, "peer: only a trainer rank may send this request");
  }
  return answer_rank(*peer.rank, request);
}

Result<Reply> Board::answer_rank(unsigned rank, const Request& request) {
  switch (request.ask) {
    case Ask::kBegin:
      if (!pending_ || pending_->id != request.id) {
        DRIFTLESS_RETURN_IF_ERROR(ring_.check_new(request.id));
        return error(StatusCode::kInvalidArgument, "peer: the leader has not begun ",
                     to_string(request.id));
      }
      pending_->bytes.erase(rank);
      return Reply{.ids = ring_.ids()};
    case Ask::kFlushed:
      DRIFTLESS_RETURN_IF_ERROR(take_flushed(rank, request.id, request.bytes));
      return Reply{};
    case Ask::kPublished: {
      const std::optional<Hash128> manifest = ring_.manifest(request.id);
      return Reply{.text = manifest ? to_hex(*manifest) : std::string()};
    }
    default: return error(StatusCode::kInternal, "peer: a request of an unknown kind");
  }
}

Result<Reply> Board::endpoints(const PublicationId& id) const {
  if (!published_.contains(id)) return not_there("peer", id);
  Reply reply;
  for (const auto& [number, peer] : peers_) reply.readers += peer.greeted && !peer.rank ? 1U : 0U;
  for (const auto& [rank, endpoint] : endpoints_) reply.endpoints.push_back(endpoint);
  return reply;
}

Status Board::take_report(Peer& peer, const Request& request) {
  ReceiverReport report{request.name, request.id.version, request.text, request.needs};
  DRIFTLESS_RETURN_IF_ERROR(check_report(report));
  // A receiver that was restarted under its id replaces the earlier one.
  for (auto& [other, known] : peers_) known.reported.erase(report.id);
  peer.reported.insert(report.id);
  left_.erase(report.id);
  receivers_[report.id] = {report, Clock::now()};
  return {};
}

void Board::leave(Peer& peer, const std::string& id) {
  // A process that was started again under this id has reported since.
  const bool replaced = std::ranges::any_of(peers_, [&](const auto& each) {
    return &each.second != &peer && each.second.reported.contains(id);
  });
  if (replaced) return;
  peer.reported.erase(id);
  if (receivers_.erase(id) > 0) left_.insert(id);
}

void Board::remove_silent() {
  const Clock::time_point now = Clock::now();
  std::erase_if(receivers_,
                [&](const auto& each) { return now - each.second.at > options_.patience; });
}

Status Board::announce(std::string_view run_info) {
  const std::scoped_lock lock(mutex_);
  if (!run_info_) run_info_ = run_info;
  if (*run_info_ == run_info) return {};
  return error(StatusCode::kAlreadyExists, "peer: another run was announced here already");
}

Status Board::begin(const PublicationId& id) {
  const std::scoped_lock lock(mutex_);
  pending_.reset();
  DRIFTLESS_RETURN_IF_ERROR(ring_.check_new(id));
  pending_ = Pending{id, {}};
  return {};
}

void Board::abort() {
  const std::scoped_lock lock(mutex_);
  pending_.reset();
}

Status Board::take_flushed(unsigned rank, const PublicationId& id, std::uint64_t bytes) {
  if (!pending_ || pending_->id != id) {
    return error(StatusCode::kBusy, "peer: ", to_string(id), " was aborted; begin it again");
  }
  pending_->bytes[rank] = bytes;
  return {};
}

Status Board::flushed(unsigned rank, const PublicationId& id, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  return take_flushed(rank, id, bytes);
}

Status Board::seal(std::string_view manifest) {
  const std::scoped_lock lock(mutex_);
  if (!pending_) return error(StatusCode::kInvalidArgument, "peer: sealing without a begin()");
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (pending_->bytes.contains(rank)) continue;
    return error(StatusCode::kIncomplete, "peer: sealing ", to_string(pending_->id), ", but rank ",
                 rank, " has not flushed its parts");
  }
  Published& added = published_[pending_->id];
  added = {std::string(manifest), 0};
  for (const auto& [rank, bytes] : pending_->bytes) added.bytes += bytes;
  ring_.add(pending_->id, xxh3_128(std::as_bytes(std::span(manifest))), std::move(pending_->bytes));
  const std::vector<PublicationId> kept = ring_.ids();
  std::erase_if(published_, [&](const auto& each) {
    return std::ranges::find(kept, each.first) == kept.end();
  });
  tracker_.keep_only(kept);
  pending_.reset();
  return {};
}

std::optional<Hash128> Board::published(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  return ring_.manifest(id);
}

std::vector<PublicationId> Board::kept() const {
  const std::scoped_lock lock(mutex_);
  return ring_.ids();
}

std::vector<ReceiverReport> Board::receivers() {
  const std::scoped_lock lock(mutex_);
  remove_silent();
  std::vector<ReceiverReport> all;
  for (const auto& [id, known] : receivers_) all.push_back(known.report);
  return all;
}

std::vector<std::string> Board::left() const {
  const std::scoped_lock lock(mutex_);
  return {left_.begin(), left_.end()};
}

void Board::set_end(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  end_ = text;
}

std::string Board::connected() const {
  std::string names;
  for (const auto& [peer, known] : peers_) {
    for (const std::string& id : known.reported) {
      if (receivers_.contains(id)) names += concat(names.empty() ? "" : ", ", id);
    }
  }
  return names;
}

Status Board::wait_for_receivers_to_leave(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  Waiting waiting;
  while (!connected().empty()) {
    waiting.look([&] { return concat("peer: the run is over; ", connected(), " still reads"); });
    if (deadline.expired()) {
      return deadline.check(concat("peer: the run is over, and ", connected(), " has not left"));
    }
    changed_.wait_until(lock, deadline.sooner(milliseconds(200)).at());
  }
  return {};
}

}  // namespace driftless::peer
