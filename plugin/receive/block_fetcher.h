// SPDX-License-Identifier: Apache-2.0
// Fetches the needed blocks of a version's frames: for a receiver that holds slices, and for an
// agent whose workers do.
#pragma once

#include "collectives/range_fetcher.h"
#include "formats/frame.h"
#include "formats/manifest.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// A frame that is fetched block by block; its collector's finish() returns the proven blocks.
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

// Fetches the head of each frame (a part), for decode_frame_head(). Empty if the road has the part
// in device memory.
[[nodiscard]] Result<std::vector<std::vector<std::byte>>> fetch_frame_heads(
    ReceiveRoad& road, const PublicationId& id, std::span<const PartReceipt> parts,
    const RangeFetchOptions& options, const Deadline& deadline);

// Fetches the needed blocks. Skips frames of which every block is needed, unless the head is a
// large part of the frame, and parts without a table's hash in the manifest: the caller fetches
// those whole. kCorrupt if a table differs from the manifest's. `keep`: also keeps the fetched
// bytes, and skips every frame of which all is needed. `memory`: for the blocks (null: allocates).
[[nodiscard]] Result<FetchedBlocks> fetch_blocks(
    ReceiveRoad& road, const PublicationId& id, const Manifest& manifest,
    const WeightLayout& layout, const FrameCollector::Needed& needed, bool keep,
    const RangeFetchOptions& options, const Deadline& deadline, KeptMemory* memory = nullptr);

// The same into memory of a GPU: the road reads each block to its place there, and the GPU hashes
// it. Frames of which every block is needed are fetched, too. Nothing if that memory has no room,
// or if a frame cannot be used there: then fetch the blocks to the host.
[[nodiscard]] Result<std::optional<FetchedBlocks>> fetch_blocks_to_device(
    ReceiveRoad& road, const PublicationId& id, const Manifest& manifest,
    const WeightLayout& layout, const FrameCollector::Needed& needed, ArrivalMemory& memory,
    const RangeFetchOptions& options, const Deadline& deadline);

}  // namespace driftless
