// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/tracker.h"

namespace driftless::peer {
namespace {

constexpr unsigned kMostDoublings = 10;

// The chunks of ranges. kInvalidArgument if they are not whole ones of the part.
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

void add_chunk(std::vector<ByteRange>& ranges, std::uint64_t chunk, std::uint64_t part_bytes) {
  const ByteRange range = chunk_at(chunk, part_bytes);
  if (!ranges.empty() && ranges.back().offset + ranges.back().size_bytes == range.offset) {
    ranges.back().size_bytes += range.size_bytes;
  } else {
    ranges.push_back(range);
  }
}

std::uint64_t bytes_in(std::span<const ByteRange> ranges) {
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.size_bytes;
  return bytes;
}

}  // namespace

Result<Tracker::Part*> Tracker::part_of(const Request& request, std::uint64_t publication_bytes) {
  Publication& publication = publications_[request.id];
  const auto [found, made] = publication.parts.try_emplace({request.name, request.text});
  Part& part = found->second;
  if (made && request.bytes > publication_bytes - publication.bytes) {
    publication.parts.erase(found);
    return error(StatusCode::kNoSpace, "peer: ", to_string(request.id), " has no part of ",
                 request.bytes, " bytes beside those that were asked for");
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

std::uint64_t Tracker::choose(const Part& part, std::uint64_t chunk, std::uint64_t reader,
                              const std::map<std::uint64_t, std::vector<ByteRange>>& given,
                              bool* busy) const {
  const Clock::time_point now = Clock::now();
  std::uint64_t best = 0;
  std::pair<std::uint64_t, std::size_t> least;
  for (const auto& [holder, kept] : part.kept) {
    const auto found = receivers_.find(holder);
    if (holder == reader || !kept[chunk] || found == receivers_.end()) continue;
    const Receiver& known = found->second;
    if (known.damages || known.blocked_until > now || known.endpoint.tcp.empty()) continue;
    const auto mine = given.find(holder);
    if (mine == given.end() && known.read_by.size() >= readers_) {
      *busy = true;
      continue;
    }
    const std::pair load(mine == given.end() ? 0 : bytes_in(mine->second), known.read_by.size());
    if (best == 0 || load < least) {
      best = holder;
      least = load;
    }
  }
  return best;
}

Result<std::vector<Source>> Tracker::assign(std::uint64_t reader, const Request& request,
                                            std::uint64_t publication_bytes) {
  const Exchange& exchange = request.exchange;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> kept,
                             chunks_of(exchange.kept, request.bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> wanted,
                             chunks_of(exchange.wanted, request.bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(Part* const part, part_of(request, publication_bytes));
  Receiver& known = receivers_[reader];
  known.endpoint = request.endpoint;
  end_reads(reader, known);
  take_faults(*part, exchange);
  if (!kept.empty() && !known.endpoint.tcp.empty()) {
    std::vector<bool>& mine = part->kept[reader];
    mine.resize(chunks_in(part->size_bytes));
    for (const std::uint64_t chunk : kept) mine[chunk] = true;
  }
  // Readers begin at different places.
  if (!wanted.empty()) {
    const std::uint64_t first = reader * 0x9E3779B97F4A7C15U % wanted.size();
    std::rotate(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(first), wanted.end());
  }
  const Clock::time_point now = Clock::now();
  const Clock::time_point until = now + late_;
  std::map<std::uint64_t, std::vector<ByteRange>> given;  // by source
  std::uint64_t from_trainer = 0, from_receivers = 0;
  for (const std::uint64_t chunk : wanted) {
    const std::uint64_t size = chunk_at(chunk, part->size_bytes).size_bytes;
    if (from_trainer >= exchange.most_bytes && from_receivers >= exchange.most_bytes) break;
    bool busy = false;
    const std::uint64_t holder = choose(*part, chunk, reader, given, &busy);
    if (holder != 0 && from_receivers < exchange.most_bytes) {
      add_chunk(given[holder], chunk, part->size_bytes);
      from_receivers += size;
    }
    if (holder != 0 || busy || from_trainer >= exchange.most_bytes) continue;
    const auto claim = part->claims.find(chunk);
    if (claim != part->claims.end() && claim->second.until > now) continue;
    part->claims[chunk] = {reader, until};
    add_chunk(given[0], chunk, part->size_bytes);
    from_trainer += size;
  }
  std::vector<Source> sources;
  for (auto& [source, ranges] : given) {
    sources.push_back({source, source == 0 ? Endpoint() : receivers_[source].endpoint, ranges});
    if (source == 0) continue;
    known.reads_from.insert(source);
    receivers_[source].read_by.insert(reader);
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
