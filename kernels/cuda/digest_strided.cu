// SPDX-License-Identifier: Apache-2.0
// The digest of weights read through maps. A segment is the intersection of one run of a map (units
// that adjoin in the tensor) with one block of the digest. A warp processes 32 segments of one
// part: each lane computes the place and keys of one segment, then the warp sums one segment after
// the other.
#include <algorithm>

#include "kernels/cuda/digest.cuh"

namespace driftless::cuda {
namespace {

constexpr std::uint32_t kSegments = 32;  // in a warp's span
// The most spans in a launch (256 MiB), so that other work can use the GPU between two launches.
constexpr std::uint32_t kDigestMapSlice = 2048;

struct DevPart {
  DigestMap part;
  std::uint64_t run_bytes;  // in the tensor
  std::uint64_t run_step;   // of the target within a run, in units
  std::uint64_t runs;
  std::uint32_t run_segments;  // upper bound: a run may begin anywhere in a block
  std::uint32_t first_span;
};

struct Segment {
  std::uint64_t block = 0;
  const std::byte* target = nullptr;  // of its first unit
  std::uint32_t from = 0, to = 0;     // range of bytes in the block
};

__device__ __forceinline__ Segment segment_of(const DevPart& dev_part, std::uint64_t number,
                                              unsigned unit_bytes, unsigned source_bytes) {
  Segment found;
  std::uint64_t run = number / dev_part.run_segments;
  const auto nth = static_cast<std::uint32_t>(number % dev_part.run_segments);
  if (run >= dev_part.runs) return found;
  const StridedMap& map = dev_part.part.map;
  const bool inner = map.dims > 0 && map.dim[map.dims - 1].source_stride == 1;
  std::uint64_t source = map.source_offset, target = map.target_offset;
  for (std::uint32_t d = map.dims - (inner ? 1 : 0); d-- > 0;) {
    const std::uint64_t index = run % map.dim[d].size;
    run /= map.dim[d].size;
    source += index * map.dim[d].source_stride;
    target += index * map.dim[d].target_stride;
  }
  const std::uint64_t begin = source * source_bytes, end = begin + dev_part.run_bytes;
  found.block = begin / kDigestBlockBytes + nth;
  const std::uint64_t block_begin = found.block * kDigestBlockBytes;
  const std::uint64_t first = block_begin > begin ? block_begin : begin;
  const std::uint64_t last =
      end < block_begin + kDigestBlockBytes ? end : block_begin + kDigestBlockBytes;
  if (first >= last) return found;
  found.from = static_cast<std::uint32_t>(first - block_begin);
  found.to = static_cast<std::uint32_t>(last - block_begin);
  found.target = dev_part.part.data_dev +
                 (target + (first - begin) / source_bytes * dev_part.run_step) * unit_bytes;
  return found;
}

__device__ __forceinline__ void add_word(const PlaceKeys& keys, std::uint32_t place,
                                         std::uint32_t bits,
                                         std::uint64_t (&totals)[2 * kDigestLanes]) {
#pragma unroll
  for (unsigned half = 0; half < 2 * kDigestLanes; ++half) {
    totals[half] = lazy_fold(totals[half] + wide(bits, keys.half[half][place]));
  }
}

// Sums whole groups of 16 bytes, at multiples of 16 on both sides.
__device__ __forceinline__ void sweep_groups(const PlaceKeys& keys, const Segment& segment,
                                             unsigned lane,
                                             std::uint64_t (&totals)[2 * kDigestLanes]) {
  const auto* const words = reinterpret_cast<const uint4*>(segment.target);
  const std::uint32_t first = segment.from / 16, groups = (segment.to - segment.from) / 16;
  uint4 loaded[8];
#pragma unroll
  for (unsigned j = 0; j < 8; ++j) {
    loaded[j] = j * 32 + lane < groups ? __ldcs(words + j * 32 + lane) : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (unsigned part = 0; part < 2; ++part) {
    if (part * 128 >= groups) break;
    std::uint64_t sums[2 * kDigestLanes] = {};
#pragma unroll
    for (unsigned j = 4 * part; j < 4 * part + 4; ++j) {
      // Words past the end are zero, so any key does.
      add_group(keys, (first + j * 32 + lane) % (kDigestBlockWords / 4), loaded[j], sums);
    }
#pragma unroll
    for (unsigned half = 0; half < 2 * kDigestLanes; ++half) totals[half] += lazy_fold(sums[half]);
  }
}

// Sums unit by unit: for any alignment, step and conversion.
template <typename Cast>
__device__ std::uint32_t sweep_units(const PlaceKeys& keys, const Segment& segment,
                                     std::uint64_t step, unsigned lane,
                                     std::uint64_t (&totals)[2 * kDigestLanes]) {
  using From = typename Cast::From;
  const auto* const units = reinterpret_cast<const typename Cast::To*>(segment.target);
  const std::uint32_t count = (segment.to - segment.from) / sizeof(From);
  std::uint32_t foreign = 0;
  for (std::uint32_t k = lane; k < count; k += 32) {
    From value;
    if (!undo_cast<Cast>(units[k * step], value)) {
      ++foreign;
      continue;
    }
    const std::uint32_t at = segment.from + k * static_cast<std::uint32_t>(sizeof(From));
    if constexpr (sizeof(From) == 8) {
      add_word(keys, at / 4, static_cast<std::uint32_t>(value), totals);
      add_word(keys, at / 4 + 1, static_cast<std::uint32_t>(value >> 32), totals);
    } else {
      add_word(keys, at / 4, static_cast<std::uint32_t>(value) << (at % 4 * 8), totals);
    }
  }
  return foreign;
}

template <typename Cast>
__global__ void __launch_bounds__(kDigestWarps * 32)
    sweep_maps(const DevPart* parts, const std::uint32_t* span_part, std::uint32_t begin,
               std::uint32_t end, std::uint64_t* out) {
  __shared__ PlaceKeys keys;
  fill_place_keys(keys);
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t span = begin + blockIdx.x * kDigestWarps + threadIdx.x / 32;
  if (span >= end) return;
  const DevPart& dev_part = parts[span_part[span]];
  constexpr bool kSame = sizeof(typename Cast::To) == sizeof(typename Cast::From);
  const Segment mine =
      segment_of(dev_part, std::uint64_t{span - dev_part.first_span} * kSegments + lane,
                 sizeof(typename Cast::To), sizeof(typename Cast::From));
  std::uint64_t lane_keys[kDigestLanes];
#pragma unroll
  for (unsigned i = 0; i < kDigestLanes; ++i) {
    lane_keys[i] = digest_block_key(dev_part.part.key, mine.block, i);
  }
  const std::uint64_t step = dev_part.run_step;
  std::uint64_t sums[kDigestLanes] = {};
  std::uint32_t foreign = 0;
  for (unsigned i = 0; i < kSegments; ++i) {
    Segment segment;
    segment.from = __shfl_sync(~0U, mine.from, i);
    segment.to = __shfl_sync(~0U, mine.to, i);
    segment.target = reinterpret_cast<const std::byte*>(
        __shfl_sync(~0U, reinterpret_cast<std::uintptr_t>(mine.target), i));
    std::uint64_t block_keys[kDigestLanes];
#pragma unroll
    for (unsigned k = 0; k < kDigestLanes; ++k) block_keys[k] = __shfl_sync(~0U, lane_keys[k], i);
    if (segment.from >= segment.to) continue;
    std::uint64_t totals[2 * kDigestLanes] = {};
    const bool groups = kSame && step == 1 && segment.from % 16 == 0 && segment.to % 16 == 0 &&
                        reinterpret_cast<std::uintptr_t>(segment.target) % 16 == 0;
    if (groups) {
      sweep_groups(keys, segment, lane, totals);
    } else {
      foreign += sweep_units<Cast>(keys, segment, step, lane, totals);
    }
    add_block(totals, block_keys, sums);
  }
  std::uint64_t* const slot = out + std::uint64_t{dev_part.part.slot} * kDigestMapSums;
  add_sums(sums, slot);
  foreign = __reduce_add_sync(~0U, foreign);
  if (lane == 0 && foreign != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(slot) + kDigestSums, foreign);
  }
}

// Divides the part into segments; does not set first_span.
DevPart cut(const DigestMap& part, unsigned unit_bytes) {
  const StridedMap& map = part.map;
  const bool inner = map.dims > 0 && map.dim[map.dims - 1].source_stride == 1;
  const std::uint64_t run_units = inner ? map.dim[map.dims - 1].size : 1;
  const unsigned width = source_bytes(part.cast, unit_bytes);
  DevPart dev_part{};
  dev_part.part = part;
  dev_part.run_bytes = run_units * width;
  dev_part.run_step = inner ? map.dim[map.dims - 1].target_stride : 1;
  dev_part.runs = map.units() / run_units;
  // If all runs begin at the same place of a block, that place gives the exact number of blocks.
  bool same_place = true;
  for (std::uint32_t d = 0; d + (inner ? 1 : 0) < map.dims; ++d) {
    same_place = same_place && map.dim[d].source_stride * width % kDigestBlockBytes == 0;
  }
  const std::uint64_t place =
      same_place ? map.source_offset * width % kDigestBlockBytes : kDigestBlockBytes - width;
  dev_part.run_segments = static_cast<std::uint32_t>(
      (place + dev_part.run_bytes + kDigestBlockBytes - 1) / kDigestBlockBytes);
  return dev_part;
}

std::uint64_t spans_of(const DevPart& dev_part) {
  return (dev_part.runs * dev_part.run_segments + kSegments - 1) / kSegments;
}

std::uint64_t spans_of(std::span<const DigestMap> parts, unsigned unit_bytes) {
  std::uint64_t spans = 0;
  for (const DigestMap& part : parts) spans += spans_of(cut(part, unit_bytes));
  return spans;
}

// Launches the kernel for this conversion, which all parts of a sweep share.
template <typename Launch>
Status launch_by_cast(ValueCast cast, unsigned unit_bytes, const Launch& launch) {
  switch (cast) {
    case ValueCast::kBF16ToF32: return launch(sweep_maps<BF16ToF32>);
    case ValueCast::kF16ToF32: return launch(sweep_maps<F16ToF32>);
    default:
      return with_cast(ValueCast::kNone, unit_bytes,
                       [&](auto same) { return launch(sweep_maps<decltype(same)>); });
  }
}

}  // namespace

WorkspaceSize MapSweep::workspace_size(std::span<const DigestMap> parts, unsigned unit_bytes) {
  return span_table_size<DevPart>(parts.size(), spans_of(parts, unit_bytes));
}

Result<MapSweep> MapSweep::make(std::span<const DigestMap> parts, unsigned unit_bytes,
                                const Workspace& workspace, Stream stream) {
  const std::uint64_t spans = spans_of(parts, unit_bytes);
  if (spans >= (std::uint64_t{1} << 31) || !valid_width(unit_bytes)) {
    return error(StatusCode::kInvalidArgument, "a digest of ", parts.size(), " maps with units of ",
                 unit_bytes, " bytes: ", spans, " spans; cut it in two");
  }
  for (const DigestMap& part : parts) {
    if (part.cast == parts.front().cast && reversible(part.cast)) continue;
    return error(StatusCode::kInvalidArgument, "a digest of maps that convert differently");
  }
  MapSweep sweep;
  sweep.unit_bytes_ = unit_bytes;
  sweep.cast_ = parts.empty() ? ValueCast::kNone : parts.front().cast;
  sweep.parts_ = static_cast<std::uint32_t>(parts.size());
  sweep.spans_ = static_cast<std::uint32_t>(spans);
  sweep.dev_ = workspace.dev;
  if (spans == 0) return sweep;
  DRIFTLESS_RETURN_IF_ERROR(place_spans<DevPart>(parts, spans, workspace, "a digest through maps",
                                                 stream,
                                                 [&](const DigestMap& part, std::uint32_t first) {
                                                   DevPart dev_part = cut(part, unit_bytes);
                                                   dev_part.first_span = first;
                                                   return std::pair(dev_part, spans_of(dev_part));
                                                 }));
  return sweep;
}

Status MapSweep::sum(std::uint64_t* sums_dev, Stream stream) const {
  if (spans_ == 0) return {};
  const auto dev = carve_spans<DevPart>(dev_, parts_, spans_);
  return launch_by_cast(cast_, unit_bytes_, [&](auto kernel) -> Status {
    for (std::uint32_t begin = 0; begin < spans_;) {
      const std::uint32_t end = spans_ - begin < kDigestMapSlice ? spans_ : begin + kDigestMapSlice;
      const unsigned blocks = (end - begin + kDigestWarps - 1) / kDigestWarps;
      kernel<<<blocks, kDigestWarps * 32, 0, native(stream)>>>(dev.items, dev.span_item, begin, end,
                                                               sums_dev);
      DRIFTLESS_RETURN_IF_ERROR(check_launch("sweep_maps"));
      begin = end;
    }
    return {};
  });
}

}  // namespace driftless::cuda
