// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/shared_reader.h"

#include <cstring>

#include "collectives/part_ranges.h"
#include "collectives/peer/tracker.h"
#include "collectives/range_fetcher.h"
#include "core/parallel.h"

namespace driftless::peer {
namespace {

using std::chrono::milliseconds;

// The size of a batch varies between these, so that it takes about a tenth of a second: the chunks
// of one reader then soon help the others.
constexpr std::uint64_t kLeastBatch = std::uint64_t{256} << 10,
                        kMostBatch = std::uint64_t{16} << 20;
constexpr std::uint64_t kWindow = Tracker::kMaxWanted * kChunkBytes;
constexpr milliseconds kShort{50}, kLong{200};
constexpr milliseconds kFirstWait{1}, kLongestWait{50};          // for chunks that others fetch
constexpr std::uint64_t kKeptForReads = std::uint64_t{1} << 20;  // for the reader of each receiver
constexpr std::size_t kMostConnections = 32;  // to receivers; with more, the unused ones are closed

std::uint64_t end_of_range(const ByteRange& range) { return range.offset + range.size_bytes; }

PeerOptions towards_receivers(const PeerOptions& options) {
  PeerOptions adjusted = options;
  adjusted.carrier = PeerCarrier::kTcp;
  adjusted.stall = options.late;
  adjusted.read_bytes = kKeptForReads;
  return adjusted;
}

}  // namespace

// One call of read() or offer().
class SharedReader::Read {
 public:
  Read(SharedReader& reader, const Endpoint& rank, const PublicationId& id, const PartReceipt& part,
       std::span<const ByteRange> ranges, const Deadline& deadline)
      : reader_(reader),
        rank_(rank),
        id_(id),
        part_(part),
        ranges_(ranges),
        deadline_(deadline),
        places_(ranges) {}

  [[nodiscard]] Result<std::vector<MappedFile>> run() {
    DRIFTLESS_RETURN_IF_ERROR(know_hashes());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                               allocate_ranges(places_, concat("peer: part '", part_.name, "'")));
    split(memory.get());
    DRIFTLESS_RETURN_IF_ERROR(read_edges());
    take_kept();
    const Status all = read_chunks();
    if (exchange_ != Exchange()) static_cast<void>(ask({}));  // other readers wait for the report
    DRIFTLESS_RETURN_IF_ERROR(all);
    return places_.files(part_.name, memory, memory.get());
  }

  // Returns the number of bytes that were kept.
  [[nodiscard]] Result<std::uint64_t> offer(std::span<const std::byte> bytes) {
    DRIFTLESS_RETURN_IF_ERROR(know_hashes());
    std::uint64_t kept = 0;
    for (std::uint64_t chunk = 0; chunk < hashes_.size(); ++chunk) {
      const ByteRange range = chunk_at(chunk, part_.size_bytes);
      const auto one = bytes.subspan(range.offset, range.size_bytes);
      if (xxh3_128(one) != hashes_[chunk] || !keep(chunk, one)) continue;
      kept += one.size();
      if (exchange_.kept.size() == kMaxExchanged) DRIFTLESS_RETURN_IF_ERROR(ask({}).status());
    }
    if (exchange_ != Exchange()) DRIFTLESS_RETURN_IF_ERROR(ask({}).status());
    return kept;
  }

 private:
  struct Piece {  // a wanted chunk
    std::uint64_t chunk = 0;
    std::byte* to = nullptr;
    bool there = false;
  };
  struct Edge {  // bytes of a chunk that is only partly wanted
    ByteRange range;
    std::byte* to = nullptr;
  };

  [[nodiscard]] Status know_hashes() {
    if (reader_.kept_.hashes(id_, part_) == nullptr) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<Hash128> hashes,
                                 reader_.from_trainer_.chunk_hashes(rank_, id_, part_, deadline_));
      reader_.kept_.set_hashes(id_, part_, std::move(hashes));
    }
    hashes_ = *reader_.kept_.hashes(id_, part_);
    return {};
  }

  void split(std::byte* memory) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      std::byte* const to = places_.of(i, memory).data();
      const std::uint64_t begin = ranges_[i].offset, end = end_of_range(ranges_[i]);
      const std::uint64_t first = chunks_in(begin);
      const std::uint64_t past = end == part_.size_bytes ? chunks_in(end) : end / kChunkBytes;
      const auto edge = [&](std::uint64_t from, std::uint64_t until) {
        if (from < until) edges_.push_back({{from, until - from}, to + (from - begin)});
      };
      if (first >= past) {
        edge(begin, end);
        continue;
      }
      edge(begin, first * kChunkBytes);
      for (std::uint64_t chunk = first; chunk < past; ++chunk) {
        pieces_.push_back({chunk, to + (chunk * kChunkBytes - begin)});
      }
      edge(std::min(past * kChunkBytes, end), end);
    }
    std::ranges::stable_sort(pieces_, {}, &Piece::chunk);
    missing_ = pieces_.size();
    if (missing_ * kChunkBytes > kWindow) begin_ = random_hash128().low % missing_;
  }

  [[nodiscard]] Status read_edges() {
    if (edges_.empty()) return {};
    std::vector<ByteRange> ranges;
    for (const Edge& edge : edges_) ranges.push_back(edge.range);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<MappedFile> found,
                               reader_.from_trainer_.read(rank_, id_, part_, ranges, deadline_));
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      std::memcpy(edges_[i].to, found[i].bytes().data(), found[i].bytes().size());
      reader_.trainer_bytes_ += found[i].bytes().size();
    }
    return {};
  }

  [[nodiscard]] std::span<Piece> pieces_of(std::uint64_t chunk) {
    const auto found = std::ranges::equal_range(pieces_, chunk, {}, &Piece::chunk);
    return {found.begin(), found.end()};
  }

  void place(std::uint64_t chunk, std::span<const std::byte> bytes) {
    for (Piece& piece : pieces_of(chunk)) {
      if (piece.there) continue;
      std::memcpy(piece.to, bytes.data(), bytes.size());
      piece.there = true;
      --missing_;
    }
  }

  void take_kept() {
    for (const Piece& piece : pieces_) {
      if (piece.there) continue;
      const std::span<const std::byte> kept = reader_.kept_.find(id_, part_, piece.chunk);
      if (kept.empty()) continue;
      place(piece.chunk, kept);
      note_kept(piece.chunk);  // a new leader has no report of it yet
    }
  }

  // Missing chunks from piece `first` on, as ranges of at most `most_bytes` in all.
  [[nodiscard]] std::vector<ByteRange> missing(std::uint64_t most_bytes, std::size_t first) const {
    std::vector<ByteRange> ranges;
    std::uint64_t bytes = 0;
    for (std::size_t i = first; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.there) continue;
      const ByteRange range = chunk_at(piece.chunk, part_.size_bytes);
      // Another range wants the same chunk.
      if (!ranges.empty() && end_of_range(ranges.back()) > range.offset) continue;
      const bool adjoins = !ranges.empty() && end_of_range(ranges.back()) == range.offset;
      if (bytes >= most_bytes || (!adjoins && ranges.size() == kMaxExchanged)) break;
      if (adjoins) {
        ranges.back().size_bytes += range.size_bytes;
      } else {
        ranges.push_back(range);
      }
      bytes += range.size_bytes;
    }
    return ranges;
  }

  [[nodiscard]] Status read_chunks() {
    Backoff backoff(kFirstWait, kLongestWait);
    Deadline patience = deadline_.sooner(reader_.options_.late);
    while (missing_ > 0) {
      DRIFTLESS_RETURN_IF_ERROR(deadline_.check(concat("peer: reading part '", part_.name, "'")));
      Result<Reply> reply = ask(next_window());
      const bool useless = !reply.ok() || !check_sources(reply->sources);
      // Reads the rest from the trainer rank: the leader does not answer, or other readers were to
      // fetch the missing chunks and have not done so in time.
      if (useless || (reply->sources.empty() && patience.expired())) {
        DRIFTLESS_RETURN_IF_ERROR(read_rest());
        break;
      }
      if (reply->sources.empty()) {
        begin_ += kWindow / kChunkBytes;  // chunks further on may be available
        backoff.sleep(patience);
        continue;
      }
      DRIFTLESS_RETURN_IF_ERROR(read_batch(reply->sources));
      backoff.reset();
      patience = deadline_.sooner(reader_.options_.late);
    }
    return {};
  }

  // The chunks of the next request: readers begin at different places of a large part.
  [[nodiscard]] std::vector<ByteRange> next_window() {
    if (begin_ >= pieces_.size()) begin_ = 0;
    std::vector<ByteRange> ranges = missing(kWindow, begin_);
    if (!ranges.empty()) return ranges;
    begin_ = 0;
    return missing(kWindow, begin_);
  }

  [[nodiscard]] Result<Reply> ask(std::vector<ByteRange> wanted) {
    exchange_.wanted = std::move(wanted);
    exchange_.most_bytes = reader_.batch_bytes_;
    Request request{.ask = Ask::kSources,
                    .bytes = part_.size_bytes,
                    .id = id_,
                    .name = part_.name,
                    .text = to_hex(part_.hash),
                    .exchange = std::exchange(exchange_, {})};
    if (reader_.server_ != nullptr) request.endpoint = reader_.server_->endpoint();
    return reader_.leader_.ask(std::move(request), deadline_.sooner(reader_.options_.late));
  }

  // Checks that sources have only missing chunks, each from one source.
  [[nodiscard]] bool check_sources(const std::vector<Source>& sources) {
    std::vector<std::uint64_t> chunks;
    for (const Source& source : sources) {
      for (const ByteRange& range : source.ranges) {
        const bool inside = range.offset % kChunkBytes == 0 && range.offset < part_.size_bytes &&
                            range.size_bytes > 0 &&
                            range.size_bytes <= part_.size_bytes - range.offset;
        if (!inside) return false;
        for (std::uint64_t i = 0; i < chunks_in(range.size_bytes); ++i) {
          chunks.push_back(range.offset / kChunkBytes + i);
          const std::span<const Piece> pieces = pieces_of(chunks.back());
          if (pieces.empty() || pieces.front().there) return false;
        }
      }
    }
    std::ranges::sort(chunks);
    return std::ranges::adjacent_find(chunks) == chunks.end();
  }

  [[nodiscard]] Status read_batch(const std::vector<Source>& sources) {
    const auto begin = Deadline::Clock::now();
    std::vector<Result<std::vector<MappedFile>>> got(sources.size(),
                                                     error(StatusCode::kInternal, "not read"));
    std::vector<PartReader*> readers;
    for (const Source& source : sources) readers.push_back(&reader_for(source.number));
    const Deadline soon = deadline_.sooner(reader_.options_.late);
    DRIFTLESS_RETURN_IF_ERROR(parallel_for(
        sources.size(), static_cast<unsigned>(sources.size()), [&](std::size_t i, unsigned) {
          const bool trainer = sources[i].number == 0;
          got[i] = readers[i]->read(trainer ? rank_ : sources[i].from, id_, part_,
                                    sources[i].ranges, trainer ? deadline_ : soon);
          return Status();
        }));
    adapt(Deadline::Clock::now() - begin);
    std::vector<ByteRange> failed;  // ranges that receivers failed to send
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      Status taken = got[i].status();
      if (got[i].ok()) taken = take(source, *got[i]);
      if (taken.ok()) continue;
      if (source.number == 0) return taken;
      blame(source.number, taken.code());
      failed.insert(failed.end(), source.ranges.begin(), source.ranges.end());
    }
    DRIFTLESS_RETURN_IF_ERROR(read_from_trainer(failed));
    drop_connections(sources);
    return {};
  }

  [[nodiscard]] PartReader& reader_for(std::uint64_t source) {
    if (source == 0) return reader_.from_trainer_;
    return reader_.peers_.try_emplace(source, towards_receivers(reader_.options_), reader_.token_)
        .first->second;
  }

  void adapt(Deadline::Clock::time_point::duration took) {
    std::uint64_t& batch = reader_.batch_bytes_;
    if (took < kShort) batch = std::min(batch * 2, kMostBatch);
    if (took > kLong) batch = std::max(batch / 2, kLeastBatch);
  }

  // Places the chunks; kCorrupt if one has another hash: then only those before it are placed.
  [[nodiscard]] Status take(const Source& source, const std::vector<MappedFile>& found) {
    for (std::size_t i = 0; i < source.ranges.size(); ++i) {
      std::span<const std::byte> bytes = found[i].bytes();
      for (std::uint64_t chunk = source.ranges[i].offset / kChunkBytes; !bytes.empty(); ++chunk) {
        const auto one = bytes.first(chunk_at(chunk, part_.size_bytes).size_bytes);
        if (xxh3_128(one) != hashes_[chunk]) {
          return error(StatusCode::kCorrupt, "peer: chunk ", chunk, " of part '", part_.name,
                       "' of ", to_string(id_), " is damaged");
        }
        place(chunk, one);
        static_cast<void>(keep(chunk, one));
        (source.number == 0 ? reader_.trainer_bytes_ : reader_.receiver_bytes_) += one.size();
        bytes = bytes.subspan(one.size());
      }
    }
    return {};
  }

  [[nodiscard]] bool keep(std::uint64_t chunk, std::span<const std::byte> bytes) {
    if (!reader_.start_server().ok() || !reader_.kept_.keep(id_, part_, chunk, bytes)) return false;
    note_kept(chunk);
    return true;
  }

  void note_kept(std::uint64_t chunk) {
    const ByteRange range = chunk_at(chunk, part_.size_bytes);
    std::vector<ByteRange>& kept = exchange_.kept;
    if (!kept.empty() && end_of_range(kept.back()) == range.offset) {
      kept.back().size_bytes += range.size_bytes;
    } else if (kept.size() < kMaxExchanged) {
      kept.push_back(range);
    }
  }

  void blame(std::uint64_t source, StatusCode why) {
    reader_.peers_.erase(source);
    const bool gone = why == StatusCode::kNotFound || why == StatusCode::kIncomplete;
    const bool late = why == StatusCode::kIo || why == StatusCode::kDeadlineExceeded;
    (gone ? exchange_.gone : late ? exchange_.late : exchange_.damaged).push_back(source);
  }

  // Reads the missing chunks in `ranges`.
  [[nodiscard]] Status read_from_trainer(std::span<const ByteRange> ranges) {
    std::vector<ByteRange> left;
    for (const ByteRange& range : ranges) {
      for (std::uint64_t i = 0; i < chunks_in(range.size_bytes); ++i) {
        const std::uint64_t chunk = range.offset / kChunkBytes + i;
        if (!pieces_of(chunk).front().there) left.push_back(chunk_at(chunk, part_.size_bytes));
      }
    }
    if (left.empty()) return {};
    const Source trainer{.ranges = union_of(std::move(left))};
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::vector<MappedFile> found,
        reader_.from_trainer_.read(rank_, id_, part_, trainer.ranges, deadline_));
    return take(trainer, found);
  }

  [[nodiscard]] Status read_rest() {
    while (missing_ > 0) DRIFTLESS_RETURN_IF_ERROR(read_from_trainer(missing(kMostBatch, 0)));
    return {};
  }

  void drop_connections(const std::vector<Source>& used) {
    if (reader_.peers_.size() <= kMostConnections) return;
    std::erase_if(reader_.peers_, [&](const auto& each) {
      return std::ranges::find(used, each.first, &Source::number) == used.end();
    });
  }

  SharedReader& reader_;
  const Endpoint& rank_;
  const PublicationId id_;
  const PartReceipt& part_;
  const std::span<const ByteRange> ranges_;
  const Deadline deadline_;
  const RangePlaces places_;
  std::vector<Hash128> hashes_;
  std::vector<Piece> pieces_;  // by chunk; repeated if ranges overlap
  std::vector<Edge> edges_;
  std::size_t missing_ = 0;
  std::size_t begin_ = 0;  // the piece at which the next request begins
  Exchange exchange_;      // report for the next request
};

SharedReader::SharedReader(const PeerOptions& options, std::string reached_by, std::string token,
                           Client& leader, PartReader& from_trainer)
    : options_(options),
      reached_by_(std::move(reached_by)),
      token_(std::move(token)),
      leader_(leader),
      from_trainer_(from_trainer),
      kept_(options.keep_bytes),
      batch_bytes_(kLeastBatch) {}

bool SharedReader::reads(const Endpoint& rank, const PartReceipt& part, std::uint32_t readers) {
  if (options_.keep_bytes == 0 || readers < 2 || part.size_bytes < kChunkBytes) return false;
  const Result<PeerCarrier> carrier = from_trainer_.carrier_to(rank);
  return carrier.ok() && *carrier == PeerCarrier::kTcp;
}

Status SharedReader::start_server() {
  if (server_ != nullptr) return {};
  if (reached_by_.empty()) return error(StatusCode::kIo, "peer: no address to serve on");
  PeerOptions adjusted = options_;
  adjusted.address.clear();  // that setting is for trainer ranks
  adjusted.carrier = PeerCarrier::kTcp;
  DRIFTLESS_ASSIGN_OR_RETURN(server_,
                             make_part_server(adjusted, kNoRank, reached_by_, kept_.store()));
  return {};
}

Result<std::vector<MappedFile>> SharedReader::read(const Endpoint& rank, const PublicationId& id,
                                                   const PartReceipt& part,
                                                   std::span<const ByteRange> ranges,
                                                   const Deadline& deadline) {
  return Read(*this, rank, id, part, ranges, deadline).run();
}

Result<std::uint64_t> SharedReader::offer(const Endpoint& rank, const PublicationId& id,
                                          const PartReceipt& part, std::span<const std::byte> bytes,
                                          const Deadline& deadline) {
  if (bytes.size() != part.size_bytes) {
    return error(StatusCode::kInvalidArgument, "peer: ", bytes.size(), " bytes of part '",
                 part.name, "', which has ", part.size_bytes);
  }
  if (!reads(rank, part, 2)) return std::uint64_t{0};  // another receiver may join
  return Read(*this, rank, id, part, {}, deadline).offer(bytes);
}

}  // namespace driftless::peer
