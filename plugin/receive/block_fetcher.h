// SPDX-License-Identifier: Apache-2.0
// Fetches of a version's frames the blocks that are needed: for a receiver that holds slices, and
// for an agent whose workers do.
#pragma once

#include "collectives/range_fetcher.h"
#include "formats/frame.h"
#include "formats/manifest.h"

namespace driftless {

// A frame of which not every block is needed; finish() of its collector proves those that are.
struct FetchedFrame {
  std::size_t file = 0;         // in the manifest
  std::vector<std::byte> head;  // decode_frame_head()
  FrameCollector collector;
  std::vector<MappedFile> ranges = {};  // as the collector's, if they are kept
};
struct FetchedBlocks {
  std::vector<FetchedFrame> frames;
  std::uint64_t fetched_bytes = 0, needed_bytes = 0;
};

// Whether blocks of this version can be proven without the rest of it.
[[nodiscard]] bool may_fetch_blocks(const Manifest& manifest);

// The head of each part, a frame, for decode_frame_head(). Empty if the road has the part in device
// memory.
[[nodiscard]] Result<std::vector<std::vector<std::byte>>> fetch_frame_heads(
    ReceiveRoad& road, const PublicationId& id, std::span<const PartReceipt> parts,
    const RangeFetchOptions& options, const Deadline& deadline);

// Frames of which every block is needed, and parts that the manifest has no table of, are left to
// be fetched whole. kCorrupt if a table is not the manifest's. `keep`: keeps the bytes as they
// came. `memory`: for the blocks (null: memory of their own).
[[nodiscard]] Result<FetchedBlocks> fetch_blocks(
    ReceiveRoad& road, const PublicationId& id, const Manifest& manifest,
    const WeightLayout& layout, const FrameCollector::Needed& needed, bool keep,
    const RangeFetchOptions& options, const Deadline& deadline, KeptMemory* memory = nullptr);

}  // namespace driftless
