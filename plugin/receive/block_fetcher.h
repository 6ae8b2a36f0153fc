// SPDX-License-Identifier: Apache-2.0
// Fetches the needed blocks of a version's frames: for a receiver that holds slices, and for an
// agent whose workers do.
#pragma once

#include "collectives/range_fetcher.h"
#include "formats/frame.h"
#include "formats/manifest.h"

namespace driftless {

// A frame of which some blocks are not needed; its collector's finish() proves the needed ones.
struct FetchedFrame {
  std::size_t file = 0;         // index in the manifest
  std::vector<std::byte> head;  // decode_frame_head()
  FrameCollector collector;
  std::vector<MappedFile> ranges = {};  // in the collector's order, if they are kept
};
struct FetchedBlocks {
  std::vector<FetchedFrame> frames;
  std::uint64_t fetched_bytes = 0, needed_bytes = 0;
};

// Whether blocks of this version can be proven without the rest of it.
[[nodiscard]] bool may_fetch_blocks(const Manifest& manifest);

// Fetches the head of each part, a frame, for decode_frame_head(). Empty if the road has the part
// in device memory.
[[nodiscard]] Result<std::vector<std::vector<std::byte>>> fetch_frame_heads(
    ReceiveRoad& road, const PublicationId& id, std::span<const PartReceipt> parts,
    const RangeFetchOptions& options, const Deadline& deadline);

// Skips frames of which every block is needed, and parts whose table is not in the manifest; fetch
// those whole. kCorrupt if a table differs from the manifest's. `keep`: keeps the fetched bytes,
// too. `memory`: for the blocks (null: memory of their own).
[[nodiscard]] Result<FetchedBlocks> fetch_blocks(
    ReceiveRoad& road, const PublicationId& id, const Manifest& manifest,
    const WeightLayout& layout, const FrameCollector::Needed& needed, bool keep,
    const RangeFetchOptions& options, const Deadline& deadline, KeptMemory* memory = nullptr);

}  // namespace driftless
