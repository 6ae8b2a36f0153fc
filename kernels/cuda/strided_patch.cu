// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/strided_patch.cuh"

#include <algorithm>

#include "kernels/cuda/digest.cuh"

namespace driftless::cuda {
namespace {

std::uint64_t chunks_of(const StridedPatch::Part& part) {
  return (part.count + kStridedChunk - 1) / kStridedChunk;
}

std::uint64_t chunks_of(std::span<const StridedPatch::Part> parts) {
  std::uint64_t chunks = 0;
  for (const StridedPatch::Part& part : parts) chunks += chunks_of(part);
  return chunks;
}

// Reads the written units past the SM's own cache, as any other reader will.
template <unsigned W>
__device__ bool holds(const Unit<W>* units, const StridedChanges& changes,
                      const Unit<W> (&written)[kStridedTogether]) {
  bool all = true;
#pragma unroll
  for (unsigned j = 0; j < kStridedTogether; ++j) {
    if (changes.at[j] == StridedMap::kOutside) continue;
    all = all && *static_cast<const volatile Unit<W>*>(units + changes.at[j]) == written[j];
  }
  return all;
}

template <unsigned W, PositionsFrom From>
__global__ void __launch_bounds__(kStridedWarps * 32)
    exchange(StridedTables tables, StridedPositions from, std::uint32_t begin, std::uint32_t end,
             const std::byte* values_dev, std::byte* old_dev, std::uint32_t* differs_dev) {
  each_strided<From>(
      tables, from, begin, end,
      [&](const StridedPatch::Part& part, std::uint32_t number, const StridedChanges& changes) {
        auto* const units = reinterpret_cast<Unit<W>*>(part.data_dev);
        auto* const old = reinterpret_cast<Unit<W>*>(old_dev) + part.old_begin;
        Unit<W> there[kStridedTogether], written[kStridedTogether];
        load_there<W>(units, changes, there);
        bool differs = false;
#pragma unroll
        for (unsigned j = 0; j < kStridedTogether; ++j) {
          if (changes.at[j] == StridedMap::kOutside) continue;
          written[j] =
              load_converted<W>(values_dev + part.value_begin, changes.number[j], part.cast);
          units[changes.at[j]] = written[j];
          if (differs_dev != nullptr && old[changes.number[j]] == there[j]) continue;
          old[changes.number[j]] = there[j];
          differs = differs_dev != nullptr;
        }
        if (differs) atomicMin(differs_dev, number);
        if (differs_dev == nullptr) return;
        if (!holds<W>(units, changes, written)) atomicMin(differs_dev + 1, number);
      });
}

// Adds one change of a map that converts by `Cast`, in the tensor's own type.
template <typename Cast>
__device__ __forceinline__ void add_converted(const DigestTensorKey& key, std::uint64_t unit,
                                              typename Cast::To there, typename Cast::From value,
                                              std::uint64_t (&sums)[kDigestLanes]) {
  typename Cast::From before, after;
  static_cast<void>(undo_cast<Cast>(there, before));
  static_cast<void>(undo_cast<Cast>(Cast::apply(value), after));
  add_unit<sizeof(before)>(key, unit, before, after, sums);
}

template <unsigned W>
__device__ __forceinline__ void add_change(const StridedPatch::Part& part, std::uint64_t unit,
                                           Unit<W> there, const std::byte* values, std::uint64_t k,
                                           std::uint64_t (&sums)[kDigestLanes]) {
  if (part.cast == ValueCast::kNone) {
    add_unit<W>(part.key, unit, there, reinterpret_cast<const Unit<W>*>(values)[k], sums);
  }
  if constexpr (W == 4) {
    const std::uint16_t* const halves = reinterpret_cast<const std::uint16_t*>(values);
    if (part.cast == ValueCast::kBF16ToF32) {
      add_converted<BF16ToF32>(part.key, unit, there, halves[k], sums);
    }
    if (part.cast == ValueCast::kF16ToF32) {
      add_converted<F16ToF32>(part.key, unit, there, halves[k], sums);
    }
  }
}

template <unsigned W, PositionsFrom From>
__global__ void __launch_bounds__(kStridedWarps * 32)
    sum_strided(StridedTables tables, StridedPositions from, std::uint32_t begin, std::uint32_t end,
                const std::byte* old_dev, const std::byte* values_dev, std::uint64_t* out) {
  const std::uint32_t chunk = begin + blockIdx.x * kStridedWarps + threadIdx.x / 32;
  if (chunk >= end) return;
  std::uint64_t sums[kDigestLanes] = {};
  each_strided<From>(
      tables, from, begin, end,
      [&](const StridedPatch::Part& part, std::uint32_t, const StridedChanges& changes) {
        const auto* const old = reinterpret_cast<const Unit<W>*>(old_dev) + part.old_begin;
#pragma unroll
        for (unsigned j = 0; j < kStridedTogether; ++j) {
          if (changes.at[j] == StridedMap::kOutside) continue;
          add_change<W>(part, changes.unit[j], old[changes.number[j]],
                        values_dev + part.value_begin, changes.number[j], sums);
        }
      });
  __syncwarp();
  add_sums(sums, out + std::uint64_t{kDigestSums} * tables.span_item[chunk]);
}

// The bytes of the table of parts, which precedes the workspace of the Patch of its streams.
std::uint64_t table_bytes(std::span<const StridedPatch::Part> parts) {
  return span_table_size<StridedPart>(parts.size(), chunks_of(parts)).dev_bytes;
}

}  // namespace

WorkspaceSize StridedPatch::workspace_size(std::span<const Part> parts,
                                           std::span<const Patch::Tensor> streams) {
  WorkspaceSize size = span_table_size<StridedPart>(parts.size(), chunks_of(parts));
  if (streams.empty()) return size;
  const WorkspaceSize positions = Patch::workspace_size(streams);
  size.dev_bytes += positions.dev_bytes;
  size.host_bytes += positions.host_bytes;
  return size;
}

Result<StridedPatch> StridedPatch::make(std::span<const Part> parts, unsigned unit_bytes,
                                        const std::uint32_t* offsets_dev,
                                        const Workspace& workspace, Stream stream) {
  constexpr std::uint64_t kMost = 0xffffffffU;
  const std::uint64_t chunks = chunks_of(parts);
  if (!valid_width(unit_bytes) || chunks >= kMost || parts.size() >= kMost) {
    return error(StatusCode::kInvalidArgument, "a strided patch of ", parts.size(), " parts in ",
                 chunks, " chunks, units of ", unit_bytes, " bytes, cannot be made");
  }
  StridedPatch patch;
  patch.unit_bytes_ = unit_bytes;
  patch.parts_ = static_cast<std::uint32_t>(parts.size());
  patch.chunks_ = static_cast<std::uint32_t>(chunks);
  patch.offsets_dev_ = offsets_dev;
  patch.dev_ = workspace.dev;
  DRIFTLESS_RETURN_IF_ERROR(
      place_spans<StridedPart>(parts, chunks, workspace, "a strided patch on the device", stream,
                               [](const Part& part, std::uint32_t first) {
                                 return std::pair(StridedPart{part, first}, chunks_of(part));
                               }));
  return patch;
}

Result<StridedPatch> StridedPatch::make(std::span<const Part> parts, unsigned unit_bytes,
                                        const Streams& streams, const Workspace& workspace,
                                        Stream stream) {
  bool fits = parts.size() == streams.tensors.size();
  for (std::size_t i = 0; fits && i < parts.size(); ++i) {
    fits = parts[i].count == streams.tensors[i].entry.count;
  }
  if (!fits) {
    return error(StatusCode::kInvalidArgument, "a strided patch of ", parts.size(),
                 " parts does not have the changes of its ", streams.tensors.size(), " streams");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_workspace(workspace, workspace_size(parts, streams.tensors),
                                            "a strided patch on the device"));
  DRIFTLESS_ASSIGN_OR_RETURN(StridedPatch patch,
                             make(parts, unit_bytes, nullptr, workspace, stream));
  const std::uint64_t table = table_bytes(parts);
  const Workspace rest{workspace.dev + table, workspace.dev_bytes - table, workspace.host + table,
                       workspace.host_bytes - table};
  DRIFTLESS_ASSIGN_OR_RETURN(patch.patch_, Patch::make(streams.tensors, unit_bytes, streams.coding,
                                                       streams.positions_dev, rest, stream));
  return patch;
}

StridedWork StridedPatch::work() const {
  StridedWork work;
  work.tables = carve_spans<StridedPart>(dev_, parts_, chunks_);
  work.from.offsets = offsets_dev_;
  work.chunks = chunks_;
  if (!patch_) return work;
  work.kind =
      patch_->coding_ == PositionCoding::kGaps ? PositionsFrom::kGaps : PositionsFrom::kIndices;
  work.from.patch = carve_patch(patch_->dev_, patch_->tensors_, patch_->chunks_);
  work.from.stream = patch_->positions_dev_;
  return work;
}

Status StridedPatch::exchange_strided(const std::byte* values_dev, std::byte* old_values_dev,
                                      std::uint32_t* differs_dev, Stream stream) const {
  const auto kernel = [&]<PositionsFrom From>() {
    return by_width(unit_bytes_, exchange<1, From>, exchange<2, From>, exchange<4, From>,
                    exchange<8, From>);
  };
  return launch_strided(work(), chunks_, "exchange_strided", kernel, stream, values_dev,
                        old_values_dev, differs_dev);
}

Status StridedPatch::digest_changes(const std::byte* old_values_dev, const std::byte* values_dev,
                                    std::uint64_t* sums_dev, Stream stream) const {
  DRIFTLESS_RETURN_IF_ERROR(clear_sums(sums_dev, parts_, stream));
  const auto kernel = [&]<PositionsFrom From>() {
    return by_width(unit_bytes_, sum_strided<1, From>, sum_strided<2, From>, sum_strided<4, From>,
                    sum_strided<8, From>);
  };
  return launch_strided(work(), kStridedSlice, "digest_changes", kernel, stream, old_values_dev,
                        values_dev, sums_dev);
}

}  // namespace driftless::cuda
