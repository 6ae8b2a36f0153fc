// SPDX-License-Identifier: Apache-2.0
// What roads share that fetch ranges of a part (ReceiveRoad::fetch_ranges).
#pragma once

#include "collectives/road.h"
#include "core/kept_memory.h"

namespace driftless {

// kCorrupt, naming the part and the range, if one leaves the part. `road` is named in the message.
[[nodiscard]] Status check_ranges(std::string_view road, const PublicationId& id,
                                  const PartReceipt& part, std::span<const ByteRange> ranges);

// Views of a part that is there whole. The ranges were checked.
[[nodiscard]] std::vector<MappedFile> slices(const MappedFile& part,
                                             std::span<const ByteRange> ranges);

// Where ranges lie in one stretch of memory, in their order, for a road that reads them there. A
// range that begins where the one before it ends follows it without a gap.
class RangePlaces {
 public:
  // They begin after `head` bytes of the road's own, a multiple of kRangeAlignment.
  explicit RangePlaces(std::span<const ByteRange> ranges, std::uint64_t head = 0);

  // Memory for all, aligned by kRangeAlignment. The largest number if it exceeds 64 bits.
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] std::span<std::byte> of(std::size_t range, std::byte* memory) const {
    return {memory + at_[range], ranges_[range].size_bytes};
  }
  // What a road returns, named as its part; `owner` keeps `memory`.
  [[nodiscard]] std::vector<MappedFile> files(const std::string& name,
                                              const std::shared_ptr<const void>& owner,
                                              const std::byte* memory) const;

 private:
  std::span<const ByteRange> ranges_;
  std::vector<std::uint64_t> at_;
  std::uint64_t total_bytes_;
};

// Memory of the process for `places`, from `kept` (null: freed after its use). kNoSpace, naming
// `what`.
[[nodiscard]] Result<std::shared_ptr<std::byte>> allocate_ranges(const RangePlaces& places,
                                                                 std::string_view what,
                                                                 KeptMemory* kept = nullptr);

}  // namespace driftless
