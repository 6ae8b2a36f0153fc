// SPDX-License-Identifier: Apache-2.0
// Fetches many ranges of a publication's parts, several at a time, within a memory cap: for a
// receiver that knows what it needs of a version, and for an agent that knows what its workers
// need.
#pragma once

#include <functional>

#include "collectives/road.h"

namespace driftless {

struct RangeFetchOptions {
  unsigned workers = 4;  // threads that fetch, if the road lets several
  // Threads that take what was fetched; fewer than `workers` count as so many.
  unsigned takers = 0;
  // Fetched and not taken yet, by all workers; a range that is larger goes alone.
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;
  // Ranges with at most so many bytes between them are fetched as one: a further request costs more
  // than these bytes.
  std::uint64_t gap_bytes = std::uint64_t{16} << 10;
};

struct WantedPart {
  PartReceipt part;
  std::vector<ByteRange> ranges;  // in any order; they may overlap
};

struct RangeFetchReport {
  std::uint64_t needed_bytes = 0;   // in at least one range
  std::uint64_t fetched_bytes = 0;  // with what lay between them, and what was fetched twice
  std::uint64_t requests = 0;       // stretches that the road was asked for
};

// Range `range` of wanted part `part`. The bytes stay valid as long as `bytes` or a copy of it
// does; what is kept beyond the call is not counted any more. Not proven:
// ReceiveRoad::fetch_ranges.
using TakeRange =
    std::function<Status(std::size_t part, std::size_t range, const MappedFile& bytes)>;

// Calls `take` once for every range, from several threads, in no order. After a failure of the road
// or of `take` nothing further is fetched, and that failure is returned. kCorrupt before anything
// is fetched if a range leaves its part. The road is called by the caller's thread alone unless it
// fetches_at_once().
[[nodiscard]] Result<RangeFetchReport> fetch_wanted(ReceiveRoad& road, const PublicationId& id,
                                                    std::span<const WantedPart> wanted,
                                                    const RangeFetchOptions& options,
                                                    const TakeRange& take,
                                                    const Deadline& deadline);

// The same bytes in ascending ranges that neither overlap nor touch, nor are empty.
[[nodiscard]] std::vector<ByteRange> union_of(std::vector<ByteRange> ranges);

}  // namespace driftless
