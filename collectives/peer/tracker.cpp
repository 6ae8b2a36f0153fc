// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/tracker.h"

#include "collectives/range_fetcher.h"

namespace driftless::peer {
namespace {

constexpr unsigned kMostDoublings = 10;

// The chunks of ranges. kInvalidArgument if the ranges are not whole chunks of the part.
Result<std::vector<std::uint64_t>> chunks_of(std::span<const ByteRange> ranges,
                                             std::uint64_t part_bytes) {
  std::vector<std::uint64_t> chunks;
  for (const ByteRange& range : ranges) {
    const bool inside = range.offset < part_bytes && range.size_bytes <= part_bytes - range.offset;
    const bool whole =
        range.offset % kChunkBytes == 0 &&
        (range.size_bytes % kChunkBytes == 0 || range.offset + range.size_bytes == part_bytes);
    const std::uint64_t count = chunks_in(range.size_bytes);
    if (!inside || !whole || count > chunks_in(part_bytes) - chunks.size()) {
      return error(StatusCode::kInvalidArgument, "peer: ranges that are not chunks of a part");
    }
    for (std::uint64_t i = 0; i < count; ++i) chunks.push_back(range.offset / kChunkBytes + i);
  }
  return chunks;
}

}  // namespace

Result<Tracker::Part*> Tracker::part_of(const Request& request, std::uint64_t publication_bytes) {
  Publication& publication = publications_[request.id];
  const auto [found, made] = publication.parts.try_emplace({request.name, request.text});
  Part& part = found->second;
  if (made && request.bytes > publication_bytes - publication.bytes) {
    publication.parts.erase(found);
    return error(StatusCode::kNoSpace, "peer: a part of ", request.bytes,
                 " bytes does not fit into ", to_string(request.id),
                 " beside its other requested parts");
  }
  if (made) {
    part.size_bytes = request.bytes;
    publication.bytes += request.bytes;
  }
  if (part.size_bytes == request.bytes) return &part;
  return error(StatusCode::kInvalidArgument, "peer: part '", request.name, "' has ",
               part.size_bytes, " bytes, not ", request.bytes);
}

void Tracker::end_reads(std::uint64_t reader, Receiver& known) {
  for (const std::uint64_t source : known.reads_from) {
    const auto found = receivers_.find(source);
    if (found != receivers_.end()) found->second.read_by.erase(reader);
  }
  known.reads_from.clear();
  for (auto& [id, publication] : publications_) {
    for (auto& [key, part] : publication.parts) {
      std::erase_if(part.claims, [&](const auto& each) { return each.second.reader == reader; });
    }
  }
}

void Tracker::take_faults(Part& part, const Exchange& exchange) {
  for (const std::uint64_t source : exchange.gone) part.kept.erase(source);
  for (const std::uint64_t source : exchange.late) {
    const auto found = receivers_.find(source);
    if (found == receivers_.end()) continue;
    Receiver& known = found->second;
    known.faults = std::min(known.faults + 1, kMostDoublings);
    known.blocked_until = Clock::now() + late_ * (1U << known.faults);
  }
  for (const std::uint64_t source : exchange.damaged) {
    const auto found = receivers_.find(source);
    if (found != receivers_.end()) found->second.damages = true;
  }
}

std::vector<Tracker::Holder> Tracker::holders_for(std::uint64_t reader, const Part& part) const {
  const Clock::time_point now = Clock::now();
  std::vector<Holder> holders;
  for (const auto& [number, kept] : part.kept) {
    const auto found = receivers_.find(number);
    if (number == reader || found == receivers_.end()) continue;
    const Receiver& known = found->second;
    if (known.damages || known.blocked_until > now || known.endpoint.tcp.empty()) continue;
    const std::size_t readers = known.read_by.size();
    holders.push_back({number, &kept, readers, 0, readers >= readers_});
  }
  return holders;
}

// Assigns a chunk to its least loaded holder that is not busy, or to the rank if no one holds it.
std::vector<Source> Tracker::share_out(std::uint64_t reader, Part& part,
                                       std::span<const std::uint64_t> wanted,
                                       std::uint64_t most_bytes) {
  const Clock::time_point now = Clock::now();
  std::vector<Holder> holders = holders_for(reader, part);
  std::map<std::uint64_t, std::vector<ByteRange>> given;  // by source
  std::uint64_t from_trainer = 0, from_receivers = 0;
  for (const std::uint64_t chunk : wanted) {
    const std::uint64_t size = chunk_at(chunk, part.size_bytes).size_bytes;
    if (from_trainer >= most_bytes && from_receivers >= most_bytes) break;
    bool held = false;
    Holder* best = nullptr;
    for (Holder& each : holders) {
      if (!(*each.kept)[chunk]) continue;
      held = true;
      if (each.busy) continue;
      const auto load = [](const Holder& one) { return std::pair(one.given_bytes, one.readers); };
      if (best == nullptr || load(each) < load(*best)) best = &each;
    }
    if (best != nullptr && from_receivers < most_bytes) {
      given[best->number].push_back(chunk_at(chunk, part.size_bytes));
      best->given_bytes += size;
      from_receivers += size;
    }
    if (held || from_trainer >= most_bytes) continue;
    const auto claim = part.claims.find(chunk);
    if (claim != part.claims.end() && claim->second.until > now) continue;
    part.claims[chunk] = {reader, now + late_};
    given[0].push_back(chunk_at(chunk, part.size_bytes));
    from_trainer += size;
  }
  std::vector<Source> sources;
  for (const auto& [number, ranges] : given) sources.push_back({number, {}, union_of(ranges)});
  return sources;
}

Result<std::vector<Source>> Tracker::assign(std::uint64_t reader, const Request& request,
                                            std::uint64_t publication_bytes) {
  const Exchange& exchange = request.exchange;
  DRIFTLESS_ASSIGN_OR_RETURN(Part* const part, part_of(request, publication_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> kept,
                             chunks_of(exchange.kept, request.bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> wanted,
                             chunks_of(exchange.wanted, request.bytes));
  if (wanted.size() > kMaxWanted) wanted.resize(kMaxWanted);
  Receiver& known = receivers_[reader];
  known.endpoint = request.endpoint;
  end_reads(reader, known);
  take_faults(*part, exchange);
  if (!kept.empty() && !known.endpoint.tcp.empty()) {
    std::vector<bool>& mine = part->kept[reader];
    mine.resize(chunks_in(part->size_bytes));
    for (const std::uint64_t chunk : kept) mine[chunk] = true;
  }
  // Different readers begin at different chunks.
  if (!wanted.empty()) {
    const std::uint64_t first = reader * 0x9E3779B97F4A7C15U % wanted.size();
    std::rotate(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(first), wanted.end());
  }
  std::vector<Source> sources = share_out(reader, *part, wanted, exchange.most_bytes);
  for (Source& source : sources) {
    if (source.number == 0) continue;
    source.from = receivers_[source.number].endpoint;
    known.reads_from.insert(source.number);
    receivers_[source.number].read_by.insert(reader);
  }
  return sources;
}

void Tracker::remove(std::uint64_t receiver) {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end()) return;
  end_reads(receiver, found->second);
  receivers_.erase(found);
  for (auto& [id, publication] : publications_) {
    for (auto& [key, part] : publication.parts) part.kept.erase(receiver);
  }
}

void Tracker::keep_only(const std::vector<PublicationId>& ids) {
  std::erase_if(publications_,
                [&](const auto& each) { return std::ranges::find(ids, each.first) == ids.end(); });
}

}  // namespace driftless::peer
