// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_payload.h"

#include <array>
#include <cstdio>

namespace driftless {

std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context) {
  const bool full = context.frame.encoding == Encoding::kFull;
  switch (context.directory_layout) {
    case DirectoryLayout::kHfDelta: return make_shard_payload(context);
    case DirectoryLayout::kFlush:
      // The format of flush files knows no whole tensors; a full version is a plain checkpoint.
      return full ? make_shard_payload(context) : make_bucket_payload(context);
    default: return full ? make_full_frame_payload(context) : make_bucket_payload(context);
  }
}

std::string frame_part_name(std::uint32_t rank, std::uint32_t index) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "rank%04u_frame%06u.frame", rank, index);
  return name.data();
}

Status write_full_frame(const PayloadContext& context, DType dtype, std::span<const DenseRun> runs,
                        std::uint32_t index) {
  FrameContext frame = context.frame;
  frame.index = index;
  std::vector<std::byte>& encoded = context.buffers->encoded;
  encoded.clear();
  DRIFTLESS_RETURN_IF_ERROR(encode_full_frame(frame, *context.layout, dtype, runs, encoded));
  return put_part(*context.road, frame_part_name(frame.rank, index), encoded);
}

Status put_part(SendRoad& road, const std::string& name, std::span<const std::byte> bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, road.create_part(name));
  DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, bytes));
  return part->sync();
}

}  // namespace driftless
