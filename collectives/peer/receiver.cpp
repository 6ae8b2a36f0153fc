// SPDX-License-Identifier: Apache-2.0
// The receiving side: asks the leading trainer rank for the publications, and reads parts from the
// ranks that have them, or from other receivers.
#include "collectives/part_ranges.h"
#include "collectives/peer/client.h"
#include "collectives/peer/part_reader.h"
#include "collectives/peer/part_server.h"
#include "collectives/peer/peer_road.h"
#include "collectives/peer/shared_reader.h"

namespace driftless::peer {
namespace {

using std::chrono::milliseconds;

// kEndTime: the limit for a request that is made although its deadline has passed, or is near.
// kSilentTime: the same if the leader did not answer the request before.
constexpr milliseconds kEndTime{1'000}, kSilentTime{100};

milliseconds time_to_look(const Client& client) { return client.silent() ? kSilentTime : kEndTime; }

class Receiver final : public ReceiveRoad {
 public:
  Receiver(std::shared_ptr<const Road> road, std::string token)
      : road_(std::move(road)),
        client_(*road_->client),
        reader_(road_->options, token),
        shared_(road_->options, road_->meeting.reached_by, std::move(token), client_, reader_) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    Backoff backoff = look_again();
    Waiting waiting;
    const auto what = [] { return "peer: waiting for the announcement of the run"; };
    do {
      Result<Reply> reply = client_.ask({.ask = Ask::kRunInfo}, deadline);
      if (reply.ok()) return std::move(reply->text);
      if (reply.status().code() != StatusCode::kNotFound) return reply.status();
    } while (waiting.sleep(backoff, deadline, what));
    return deadline.check(what());
  }

  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(Reply reply, client_.ask({.ask = Ask::kList}, deadline));
    shared_.keep_only(reply.ids);
    return std::move(reply.ids);
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    Backoff backoff = look_again();
    do {
      if (client_.rests()) continue;
      // Asks the leader once even if the deadline has passed.
      const milliseconds look = time_to_look(client_);
      const bool short_of_time = deadline.remaining() < look;
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids,
                                 list(short_of_time ? Deadline::after(look) : deadline));
      if (has_version_past(ids, version)) return {};
    } while (backoff.sleep(deadline));
    return deadline.check(concat("peer: waiting for a version past ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(Reply reply,
                               client_.ask({.ask = Ask::kManifest, .id = id}, deadline));
    return std::move(reply.text);
  }

  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("peer", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const Reply reply,
                               client_.ask({.ask = Ask::kEndpoints, .id = id}, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const Endpoint* const at, rank_of(part, reply));
    if (shared_.reads(*at, part, reply.readers) && ranges.size() <= kMaxRanges / 2) {
      return shared_.read(*at, id, part, ranges, deadline);
    }
    // Divides many ranges into several requests.
    std::vector<MappedFile> files;
    do {
      const auto some = ranges.subspan(0, std::min<std::size_t>(ranges.size(), kMaxRanges));
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> more,
                                 reader_.read(*at, id, part, some, deadline));
      std::ranges::move(more, std::back_inserter(files));
      ranges = ranges.subspan(some.size());
    } while (!ranges.empty());
    return files;
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  [[nodiscard]] bool batches_ranges() const override { return true; }

  [[nodiscard]] bool fetches_to_device() const override { return true; }
  Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                         std::span<const DeviceRange> ranges, const DeviceSpace& space,
                         const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
    std::vector<ByteRange> wanted;
    for (const DeviceRange& each : ranges) wanted.push_back(each.range);
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("peer", id, part, wanted));
    DRIFTLESS_ASSIGN_OR_RETURN(const Reply reply,
                               client_.ask({.ask = Ask::kEndpoints, .id = id}, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const Endpoint* const at, rank_of(part, reply));
    DRIFTLESS_ASSIGN_OR_RETURN(const bool done,
                               reader_.read_to_device(*at, id, part, ranges, space, deadline));
    return done ? Status() : ReceiveRoad::fetch_to_device(id, part, ranges, space, deadline);
  }

  // True if this receiver keeps chunks, and the last bytes came over TCP.
  [[nodiscard]] bool serves_others() const override {
    return road_->options.keep_bytes > 0 && reader_.carrier() == PeerCarrier::kTcp;
  }
  Result<std::uint64_t> offer_part(const PublicationId& id, const PartReceipt& part,
                                   std::span<const std::byte> bytes,
                                   const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
    DRIFTLESS_ASSIGN_OR_RETURN(const Reply reply,
                               client_.ask({.ask = Ask::kEndpoints, .id = id}, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const Endpoint* const at, rank_of(part, reply));
    return shared_.offer(*at, id, part, bytes, deadline);
  }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    DRIFTLESS_RETURN_IF_ERROR(client_
                                  .ask({.ask = Ask::kReport,
                                        .id = {.version = report.version},
                                        .name = report.id,
                                        .text = report.proof,
                                        .needs = report.needs},
                                       deadline)
                                  .status());
    reported_ = report.id;
    return {};
  }

  Status leave(const Deadline& deadline) override {
    if (reported_.empty()) return {};
    const Status left = client_.ask({.ask = Ask::kLeave, .name = reported_}, deadline).status();
    if (!left.ok() && !client_.closed()) return left;
    reported_.clear();
    return {};
  }

  [[nodiscard]] std::string carrier() const override {
    switch (reader_.carrier()) {
      case PeerCarrier::kShm: return "shm";
      case PeerCarrier::kTcp: return "tcp";
      case PeerCarrier::kNixl: return "nixl";
      case PeerCarrier::kAuto: break;
    }
    return {};
  }

 private:
  [[nodiscard]] static Result<const Endpoint*> rank_of(const PartReceipt& part,
                                                       const Reply& reply) {
    const auto at = std::ranges::find(reply.endpoints, part.rank, &Endpoint::rank);
    if (at != reply.endpoints.end()) return &*at;
    return error(StatusCode::kIncomplete, "peer: trainer rank ", part.rank, ", which has part '",
                 part.name, "', is not known to the leader");
  }
  [[nodiscard]] Backoff look_again() const {
    return {road_->options.poll_first, road_->options.poll_longest};
  }

  const std::shared_ptr<const Road> road_;
  Client& client_;
  PartReader reader_;
  SharedReader shared_;
  std::string reported_;  // the reported id; empty after leave()
};

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_receiver(const std::shared_ptr<Road>& road) {
  if (road->options.carrier == PeerCarrier::kNixl) {
    DRIFTLESS_RETURN_IF_ERROR(nixl_calls(road->options.library).status());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, data_token(road->options.hub.token_file));
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector connector, road->meeting.connector());
  road->client = std::make_shared<Client>(std::move(connector), Request{.ask = Ask::kHello},
                                          road->meeting.leader);
  return std::unique_ptr<ReceiveRoad>(std::make_unique<Receiver>(road, std::move(token)));
}

Result<std::optional<std::string>> fetch_end(const Road& road) {
  if (road.client == nullptr || road.client->rests()) return std::optional<std::string>();
  const Result<Reply> reply =
      road.client->ask({.ask = Ask::kEnd}, Deadline::after(time_to_look(*road.client)));
  if (!reply.ok() || reply->text.empty()) return std::optional<std::string>();
  return std::optional(reply->text);
}

}  // namespace driftless::peer
