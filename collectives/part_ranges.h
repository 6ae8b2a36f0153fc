// SPDX-License-Identifier: Apache-2.0
// Shared by roads that fetch ranges of a part (ReceiveRoad::fetch_ranges).
#pragma once

#include "collectives/road.h"
#include "core/kept_memory.h"

namespace driftless {

// kCorrupt, naming the part and the range, if a range leaves the part. The message names `road`.
[[nodiscard]] Status check_ranges(std::string_view road, const PublicationId& id,
                                  const PartReceipt& part, std::span<const ByteRange> ranges);

// Views of ranges of a whole part. The ranges must have been checked.
[[nodiscard]] std::vector<MappedFile> slices(const MappedFile& part,
                                             std::span<const ByteRange> ranges);

// Places ranges in one allocation, in their order, for a road that reads them into it. Ranges that
// adjoin in the part adjoin in memory, too.
class RangePlaces {
 public:
  // The ranges begin after `head` bytes that the road uses itself; `head` is a multiple of
  // kRangeAlignment.
  explicit RangePlaces(std::span<const ByteRange> ranges, std::uint64_t head = 0);

  // Size of the allocation, which must be aligned to kRangeAlignment. The largest number if the
  // size exceeds 64 bits.
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] std::span<std::byte> of(std::size_t range, std::byte* memory) const {
    return {memory + at_[range], ranges_[range].size_bytes};
  }
  // The ranges as the road returns them, named after their part. `owner` keeps `memory` alive.
  [[nodiscard]] std::vector<MappedFile> files(const std::string& name,
                                              const std::shared_ptr<const void>& owner,
                                              const std::byte* memory) const;

 private:
  std::span<const ByteRange> ranges_;
  std::vector<std::uint64_t> at_;
  std::uint64_t total_bytes_;
};

// Allocates host memory for `places` from `kept`; without `kept` it is freed after its use.
// kNoSpace names `what`.
[[nodiscard]] Result<std::shared_ptr<std::byte>> allocate_ranges(const RangePlaces& places,
                                                                 std::string_view what,
                                                                 KeptMemory* kept = nullptr);

}  // namespace driftless
