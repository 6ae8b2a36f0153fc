// SPDX-License-Identifier: Apache-2.0
// Fetches many ranges of a publication's parts, several at a time, within a memory limit. A
// receiver uses it if it knows which bytes of a version it needs; an agent, if it knows which bytes
// its workers need.
#pragma once

#include <functional>

#include "collectives/road.h"

namespace driftless {

struct RangeFetchOptions {
  unsigned workers = 4;  // threads that fetch, if the road allows several
  // Threads that process fetched ranges. A number below `workers` counts as `workers`.
  unsigned takers = 0;
  // Limit for bytes that were fetched but not yet processed, over all workers. A larger range is
  // fetched alone.
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;
  // Ranges with at most this gap between them are fetched as one: another request costs more than
  // the bytes of the gap. On a road that batches ranges the limit is kBatchedGapBytes.
  std::uint64_t gap_bytes = std::uint64_t{16} << 10;
};

inline constexpr std::uint64_t kBatchedGapBytes = 512;

struct WantedPart {
  PartReceipt part;
  std::vector<ByteRange> ranges;  // in any order; they may overlap
};

struct RangeFetchReport {
  std::uint64_t needed_bytes = 0;   // in at least one range
  std::uint64_t fetched_bytes = 0;  // including the gaps, and bytes that were fetched twice
  std::uint64_t requests = 0;       // stretches requested from the road
};

// Gets range `range` of wanted part `part`. The bytes stay valid as long as `bytes` or a copy of it
// exists; bytes kept beyond the call no longer count against the limit. They are not proven: see
// ReceiveRoad::fetch_ranges.
using TakeRange =
    std::function<Status(std::size_t part, std::size_t range, const MappedFile& bytes)>;

// Calls `take` once for every range, from several threads, in no order. After a failure of the road
// or of `take` it fetches nothing more and returns that failure. kCorrupt, before anything is
// fetched, if a range leaves its part. Only the caller's thread calls the road, unless the road
// fetches_at_once().
[[nodiscard]] Result<RangeFetchReport> fetch_wanted(ReceiveRoad& road, const PublicationId& id,
                                                    std::span<const WantedPart> wanted,
                                                    const RangeFetchOptions& options,
                                                    const TakeRange& take,
                                                    const Deadline& deadline);

// The same bytes as ascending ranges that neither overlap nor touch; none is empty.
[[nodiscard]] std::vector<ByteRange> union_of(std::vector<ByteRange> ranges);

}  // namespace driftless
