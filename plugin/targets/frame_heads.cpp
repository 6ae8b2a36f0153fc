// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/frame_heads.h"

#include <algorithm>

namespace driftless {
namespace {

// Appends bytes of the part, as far as the part reaches.
Status fetch_part(WeightMemory& memory, const MappedFile& part, std::uint64_t offset,
                  std::uint64_t bytes, std::vector<std::byte>& to) {
  const std::uint64_t size = part.bytes().size();
  offset = std::min(offset, size);
  bytes = std::min(bytes, size - offset);
  to.resize(to.size() + bytes);
  return memory.fetch(std::span(to).last(bytes), part.bytes().data() + offset)
      .with_context(part.path());
}

// Fetches the head of a frame: its header, its table and its trailer.
Result<std::vector<std::byte>> fetch_head(WeightMemory& memory, const MappedFile& part) {
  std::vector<std::byte> head;
  DRIFTLESS_RETURN_IF_ERROR(fetch_part(memory, part, 0, kFrameHeaderBytes, head));
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(head));
  DRIFTLESS_RETURN_IF_ERROR(fetch_part(memory, part, frame_places(info).table,
                                       info.table_bytes + kFrameTrailerBytes, head));
  return head;
}

}  // namespace

Result<FrameHeads> fetch_heads(WeightMemory& memory, bool in_place,
                               std::vector<FetchedVersion>& chain) {
  FrameHeads heads;
  for (FetchedVersion& version : chain) {
    const Manifest& manifest = version.manifest;
    const bool frames = manifest.directory_layout == DirectoryLayout::kFrames ||
                        manifest.directory_layout == DirectoryLayout::kHdf5;
    const bool stays = in_place && frames && manifest.encoding != Encoding::kDeltasZstd;
    for (MappedFile& part : version.parts) {
      if (part.memory_kind() != MemoryKind::kDevice) continue;
      const std::string what = join_path(version.source, part.path());
      if (stays) {
        Result<std::vector<std::byte>> head = fetch_head(memory, part);
        if (!head.ok()) return head.status().with_context(what);
        heads[part.bytes().data()] = std::move(*head);
        continue;
      }
      const auto held = std::make_shared<std::vector<std::byte>>();
      DRIFTLESS_RETURN_IF_ERROR(
          fetch_part(memory, part, 0, part.bytes().size(), *held).with_context(what));
      part = MappedFile(part.path(), held, *held);
    }
  }
  return heads;
}

}  // namespace driftless
