// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_ranges.h"

#include <limits>

namespace driftless {

Status check_ranges(std::string_view road, const PublicationId& id, const PartReceipt& part,
                    std::span<const ByteRange> ranges) {
  for (const ByteRange& range : ranges) {
    if (range.offset <= part.size_bytes && range.size_bytes <= part.size_bytes - range.offset) {
      continue;
    }
    return error(StatusCode::kCorrupt, road, ": part '", part.name, "' of ", to_string(id), " has ",
                 part.size_bytes, " bytes, but ", range.size_bytes, " were asked for at offset ",
                 range.offset, ": the table that says where its blocks lie is damaged");
  }
  return {};
}

std::vector<MappedFile> slices(const MappedFile& part, std::span<const ByteRange> ranges) {
  std::vector<MappedFile> found;
  found.reserve(ranges.size());
  for (const ByteRange& range : ranges) found.push_back(part.slice(range.offset, range.size_bytes));
  return found;
}

RangePlaces::RangePlaces(std::span<const ByteRange> ranges, std::uint64_t head)
    : ranges_(ranges), total_bytes_(head) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  at_.reserve(ranges.size());
  for (const ByteRange& range : ranges) {
    const std::uint64_t gap = (range.offset - total_bytes_) % kRangeAlignment;
    const bool fits = kMost - total_bytes_ >= gap && kMost - total_bytes_ - gap >= range.size_bytes;
    if (!fits) {
      total_bytes_ = kMost;
      return;
    }
    at_.push_back(total_bytes_ + gap);
    total_bytes_ += gap + range.size_bytes;
  }
}

std::vector<MappedFile> RangePlaces::files(const std::string& name,
                                           const std::shared_ptr<const void>& owner,
                                           const std::byte* memory) const {
  std::vector<MappedFile> found;
  found.reserve(ranges_.size());
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    found.emplace_back(name, owner, std::span(memory + at_[i], ranges_[i].size_bytes));
  }
  return found;
}

Result<std::shared_ptr<std::byte>> allocate_ranges(const RangePlaces& places, std::string_view what,
                                                   KeptMemory* kept) {
  std::shared_ptr<std::byte> memory = take_memory(kept, places.total_bytes());
  if (memory == nullptr) {
    return error(StatusCode::kNoSpace, what, ": no memory for ", places.total_bytes(), " bytes");
  }
  return memory;
}

}  // namespace driftless
