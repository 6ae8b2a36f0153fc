// SPDX-License-Identifier: Apache-2.0
// The sending side of a trainer rank: parts in memory, which its PartServer serves.
#include <limits>
#include <system_error>

#include "collectives/peer/board.h"
#include "collectives/peer/client.h"
#include "collectives/peer/part_server.h"
#include "collectives/peer/peer_road.h"
#include "core/setting_values.h"

namespace driftless::peer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAbortTime{5'000};
constexpr milliseconds kAskTime{1'000};
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Rounds `bytes` up to MiB for messages.
constexpr std::uint64_t whole_mib(std::uint64_t bytes) { return (bytes + kMiB - 1) / kMiB * kMiB; }

// The requests of a rank to the leader: calls of the Board on the leader, messages on other ranks.
class Leader {
 public:
  Leader(std::shared_ptr<Board> board, std::shared_ptr<Client> client)
      : board_(std::move(board)), client_(std::move(client)) {}
  [[nodiscard]] Board* board() const { return board_.get(); }

  // Begins a publication; returns the publications to keep.
  [[nodiscard]] Result<std::vector<PublicationId>> begin(const PublicationId& id,
                                                         const Deadline& deadline) {
    if (board_ != nullptr) {
      DRIFTLESS_RETURN_IF_ERROR(board_->begin(id));
      return board_->kept();
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Reply reply,
                               client_->ask({.ask = Ask::kBegin, .id = id}, deadline));
    began_ = true;
    return reply.ids;
  }

  [[nodiscard]] Status flushed(const PublicationId& id, std::uint64_t bytes,
                               const Deadline& deadline) {
    if (board_ != nullptr) return board_->flushed(0, id, bytes);
    return client_->ask({.ask = Ask::kFlushed, .bytes = bytes, .id = id}, deadline).status();
  }

  [[nodiscard]] Result<std::optional<Hash128>> published(const PublicationId& id,
                                                         const Deadline& deadline) {
    if (board_ != nullptr) return board_->published(id);
    DRIFTLESS_ASSIGN_OR_RETURN(const Reply reply,
                               client_->ask({.ask = Ask::kPublished, .id = id}, deadline));
    if (reply.text.empty()) return std::optional<Hash128>();
    DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 hash, hash128_from_hex(reply.text));
    return std::optional(hash);
  }

  // Other ranks continue to serve while the leader waits for receivers. Returns at once if nothing
  // was published, or the leader cannot be reached.
  void wait_until_closed(const Deadline& deadline) {
    if (client_ == nullptr || !began_) return;
    Backoff backoff(milliseconds(5), milliseconds(100));
    Waiting waiting;
    const auto whom = [] { return "peer: serving on until the leading trainer closes"; };
    while (client_->ask({.ask = Ask::kEnd}, deadline.sooner(kAskTime)).ok()) {
      if (!waiting.sleep(backoff, deadline, whom)) return;
    }
  }

 private:
  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Client> client_;
  bool began_ = false;
};

class Sender final : public SendRoad {
 public:
  Sender(std::shared_ptr<const Road> road, Leader leader, std::shared_ptr<PartStore> store,
         std::unique_ptr<PartServer> server)
      : road_(std::move(road)),
        leader_(std::move(leader)),
        store_(std::move(store)),
        server_(std::move(server)) {}
  ~Sender() override {
    const bool orderly = !begun_.has_value() || begun_->receipts.has_value();
    static_cast<void>(Sender::abort());
    if (orderly) leader_.wait_until_closed(Deadline::after(road_->options.farewell));
  }

  Status announce(std::string_view run_info, const Deadline&) override {
    return leader_.board()->announce(run_info);
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(abort());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> kept, leader_.begin(id, deadline));
    store_->keep_only(kept);
    // Anchors do not count against the ring.
    const std::uint64_t most =
        is_version(id) ? road_->options.ring_bytes : std::numeric_limits<std::uint64_t>::max();
    begun_.emplace(Begun{id, make_byte_budget(most, "road.ring_size"), {}, {}});
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    if (begun_->receipts) {
      return error(StatusCode::kInvalidArgument, "peer: part '", name, "' comes after the flush()");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(begun_->parts, name, "peer"));
    begun_->parts.push_back(
        std::make_shared<SegmentPart>(road_->rank, name, begun_->room, store_->take_memory()));
    return make_part_file(begun_->parts.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    if (begun_->receipts) return *begun_->receipts;
    std::vector<PartReceipt> receipts;
    std::uint64_t bytes = 0;
    for (const auto& part : begun_->parts) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(road_->rank, deadline));
      bytes += receipts.back().size_bytes;
    }
    for (std::size_t i = 0; i < receipts.size(); ++i) {
      store_->put(begun_->id, receipts[i].name, begun_->parts[i]->take(), receipts[i].size_bytes);
    }
    begun_->parts.clear();
    begun_->receipts = receipts;
    DRIFTLESS_RETURN_IF_ERROR(leader_.flushed(begun_->id, bytes, deadline));
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    if (!begun_->receipts) {
      return error(StatusCode::kInvalidArgument, "peer: sealing without a flush()");
    }
    DRIFTLESS_RETURN_IF_ERROR(leader_.board()->seal(manifest));
    begun_.reset();
    store_->keep_only(leader_.board()->kept());
    return {};
  }

  Status abort() override {
    if (!begun_) return {};
    const PublicationId id = begun_->id;
    const bool flushed = begun_->receipts.has_value();
    begun_.reset();
    if (leader_.board() != nullptr) leader_.board()->abort();
    // The leader may have sealed the publication. If the leader cannot be asked, the parts stay:
    // begin() receives the list of publications to keep.
    const auto published = flushed && leader_.board() == nullptr
                               ? leader_.published(id, Deadline::after(kAbortTime))
                               : Result<std::optional<Hash128>>(std::optional<Hash128>());
    if (published.ok() && !*published) store_->drop(id);
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    return leader_.published(id, deadline);
  }

  // This road forgets versions that it does not list.
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<ReceiverReport>> receivers() override { return leader_.board()->receivers(); }
  [[nodiscard]] std::vector<std::string> left() const override {
    return leader_.board() == nullptr ? std::vector<std::string>() : leader_.board()->left();
  }
  Status check_version_size(std::uint64_t bytes) override {
    if (bytes <= road_->options.ring_bytes) return {};
    return error(StatusCode::kNoSpace, "peer: a full version of rank ", road_->rank,
                 " takes up to ", bytes, " bytes, and road.ring_size is ",
                 road_->options.ring_bytes, ": raise road.ring_size to ",
                 size_text(whole_mib(bytes)), ", or publish deltas (mode: delta)");
  }
  [[nodiscard]] std::vector<std::string> notes() const override {
    const Endpoint& at = server_->endpoint();
    return {concat("peer: rank ", road_->rank, " serves its parts on ", at.tcp,
                   at.socket.empty() ? "" : ", and by shared memory on this host",
                   at.nixl == NixlOffer::kNone ? "" : ", and by NIXL")};
  }

 private:
  struct Begun {
    PublicationId id;
    TakeRoom room;
    std::vector<std::shared_ptr<SegmentPart>> parts;   // until flush()
    std::optional<std::vector<PartReceipt>> receipts;  // after flush()
  };

  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (begun_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "peer: ", what, " on rank ", road_->rank,
                 " without a begin()");
  }

  const std::shared_ptr<const Road> road_;
  Leader leader_;
  const std::shared_ptr<PartStore> store_;
  const std::unique_ptr<PartServer> server_;
  std::optional<Begun> begun_;
};

Result<Leader> find_leader(Road& road, const Endpoint& endpoint) {
  if (road.rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Hub> hub, road.meeting.hub());
    try {
      road.board = std::make_shared<Board>(road.options, road.ranks, endpoint, std::move(hub));
    } catch (const std::system_error& failure) {
      return error(StatusCode::kIo, "peer: no thread for the leader: ", failure.what());
    }
    return Leader(road.board, nullptr);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector connector, road.meeting.connector());
  Request hello{
      .ask = Ask::kHello, .ranks = road.ranks, .start = road.options.start, .endpoint = endpoint};
  return Leader(nullptr, std::make_shared<Client>(std::move(connector), std::move(hello),
                                                  road.meeting.leader));
}

}  // namespace

Result<std::unique_ptr<SendRoad>> make_sender(const std::shared_ptr<Road>& road) {
  auto store = std::make_shared<PartStore>(road->options.ring_bytes);
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<PartServer> server,
      make_part_server(road->options, road->rank, road->meeting.reached_by, store));
  DRIFTLESS_ASSIGN_OR_RETURN(Leader leader, find_leader(*road, server->endpoint()));
  return std::unique_ptr<SendRoad>(
      std::make_unique<Sender>(road, std::move(leader), std::move(store), std::move(server)));
}

Status publish_end(const Road& road, std::string_view text) {
  if (road.board == nullptr) return {};
  road.board->set_end(text);
  // The wait reports receivers that have not left by then; they do not make the run a failure.
  static_cast<void>(
      road.board->wait_for_receivers_to_leave(Deadline::after(road.options.farewell)));
  return {};
}

}  // namespace driftless::peer
