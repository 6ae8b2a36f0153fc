// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <tuple>

#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {
namespace {

constexpr std::uint32_t kNoneBad = ~std::uint32_t{0};

struct BoundedSum {
  __host__ __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
    return a + b > kMaxSum ? kMaxSum : a + b;
  }
};

std::uint64_t scan_bytes(std::uint32_t chunks) {
  std::size_t bytes = 0;
  cub::DeviceScan::ExclusiveScan(nullptr, bytes, static_cast<std::uint64_t*>(nullptr),
                                 static_cast<std::uint64_t*>(nullptr), BoundedSum{},
                                 std::uint64_t{0}, chunks);
  return bytes;
}

// before[chunk] = the sum of gap + 1 over the chunk itself; a scan follows.
__global__ void __launch_bounds__(kPatchWarps * 32)
    sum_chunks(PatchParts parts, const std::byte* positions, std::uint32_t chunks) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kPatchWarps + threadIdx.x / 32;
  if (number > chunks) return;
  std::uint64_t sum = 0;
  if (number < chunks) {
    const Chunk chunk = open_chunk(parts, positions, number, false);
    const unsigned bytes = chunk.tensor->entry.position_bytes;
    const std::uint64_t units = chunk.tensor->units;
#pragma unroll 4
    for (std::uint32_t k = lane; k < chunk.count; k += 32) {
      const std::uint64_t gap = load_position(chunk.positions + std::uint64_t{k} * bytes, bytes);
      sum = BoundedSum{}(sum, (gap < units ? gap : units) + 1);
    }
  }
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) {
    sum = BoundedSum{}(sum, __shfl_xor_sync(~0U, sum, step));
  }
  if (lane == 0) parts.before[number] = sum;
}

// Positions from gaps always ascend: the last one shows whether all are inside.
__global__ void check_gaps(PatchParts parts, std::uint32_t tensors, std::uint32_t chunks) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tensors || parts.tensors[i].entry.count == 0) return;
  const std::uint32_t end = i + 1 < tensors ? parts.tensors[i + 1].first_chunk : chunks;
  const std::uint64_t sum = parts.before[end] - parts.before[parts.tensors[i].first_chunk];
  if (sum > parts.tensors[i].units || parts.before[end] >= kMaxSum) atomicMin(parts.bad, i);
}

__global__ void __launch_bounds__(kPatchWarps * 32)
    check_indices(PatchParts parts, const std::byte* positions, std::uint32_t chunks) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kPatchWarps + threadIdx.x / 32;
  if (number >= chunks) return;
  const Chunk chunk = open_chunk(parts, positions, number, false);
  const unsigned bytes = chunk.tensor->entry.position_bytes;
  const bool first_chunk = number == chunk.tensor->first_chunk;
  bool bad = false;
  for (std::uint32_t k = lane; k < chunk.count; k += 32) {
    const std::byte* const at = chunk.positions + std::uint64_t{k} * bytes;
    const std::uint64_t position = load_position(at, bytes);
    bad = bad || position >= chunk.tensor->units;
    if (k > 0 || !first_chunk) bad = bad || load_position(at - bytes, bytes) >= position;
  }
  if (bad) atomicMin(parts.bad, parts.chunk_tensor[number]);
}

template <bool Gaps>
__global__ void ends_of(PatchParts parts, const std::byte* positions, std::uint32_t tensors,
                        std::uint32_t chunks, std::uint64_t* ends) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tensors || parts.tensors[i].entry.count == 0) return;
  const StreamEntry& entry = parts.tensors[i].entry;
  const std::byte* const first = positions + entry.position_begin;
  ends[2 * i] = load_position(first, entry.position_bytes);
  if constexpr (Gaps) {
    const std::uint32_t end = i + 1 < tensors ? parts.tensors[i + 1].first_chunk : chunks;
    ends[2 * i + 1] = parts.before[end] - parts.before[parts.tensors[i].first_chunk] - 1;
  } else {
    ends[2 * i + 1] =
        load_position(first + (entry.count - 1) * entry.position_bytes, entry.position_bytes);
  }
}

std::uint64_t patch_chunks(std::span<const Patch::Tensor> tensors) {
  std::uint64_t chunks = 0;
  for (const Patch::Tensor& tensor : tensors) chunks += (tensor.entry.count + kChunk - 1) / kChunk;
  return chunks;
}

Status check_tensor(const Patch::Tensor& tensor, std::size_t number) {
  const unsigned bytes = tensor.entry.position_bytes;
  if ((bytes == 2 || bytes == 4 || bytes == 8) && tensor.entry.count <= tensor.units) return {};
  return error(StatusCode::kInvalidArgument, "tensor number ", number,
               " of the patch: ", tensor.entry.count, " changes of ", tensor.units,
               " units, with positions of ", bytes, " bytes");
}

}  // namespace

PatchParts carve_patch(std::byte* memory, std::uint32_t tensors, std::uint32_t chunks,
                       MemoryKind kind, std::uint64_t* used) {
  Carver carver(memory);
  PatchParts parts;
  parts.tensors = carver.take<PatchTensor>(tensors);
  parts.chunk_tensor = carver.take<std::uint32_t>(chunks);
  parts.bad = carver.take<std::uint32_t>(1);
  if (kind == MemoryKind::kDevice) {
    parts.before = carver.take<std::uint64_t>(std::uint64_t{chunks} + 1);
    parts.scan = carver.take<std::byte>(scan_bytes(chunks + 1));
  }
  if (used != nullptr) *used = carver.used();
  return parts;
}

WorkspaceSize Patch::workspace_size(std::span<const Tensor> tensors) {
  const auto chunks = static_cast<std::uint32_t>(patch_chunks(tensors));
  const auto count = static_cast<std::uint32_t>(tensors.size());
  WorkspaceSize size;
  std::ignore = carve_patch(nullptr, count, chunks, MemoryKind::kDevice, &size.dev_bytes);
  std::ignore = carve_patch(nullptr, count, chunks, MemoryKind::kHost, &size.host_bytes);
  return size;
}

Result<Patch> Patch::make(std::span<const Tensor> tensors, unsigned unit_bytes,
                          PositionCoding coding, const std::byte* positions_dev,
                          const Workspace& workspace, Stream stream) {
  const std::uint64_t chunks = patch_chunks(tensors);
  if (!valid_width(unit_bytes) || chunks >= kNoneBad || tensors.size() >= kNoneBad) {
    return error(StatusCode::kInvalidArgument, "a patch of ", tensors.size(), " tensors in ",
                 chunks, " chunks, units of ", unit_bytes, " bytes, cannot be made");
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_workspace(workspace, workspace_size(tensors), "a patch on the device"));
  Patch patch;
  patch.unit_bytes_ = unit_bytes;
  patch.coding_ = coding;
  patch.tensors_ = static_cast<std::uint32_t>(tensors.size());
  patch.chunks_ = static_cast<std::uint32_t>(chunks);
  patch.positions_dev_ = positions_dev;
  patch.dev_ = workspace.dev;
  patch.host_ = workspace.host;
  const PatchParts host =
      carve_patch(patch.host_, patch.tensors_, patch.chunks_, MemoryKind::kHost);
  std::uint32_t chunk = 0;
  for (std::uint32_t i = 0; i < patch.tensors_; ++i) {
    DRIFTLESS_RETURN_IF_ERROR(check_tensor(tensors[i], i));
    host.tensors[i] = {tensors[i], chunk};
    patch.cut_ = patch.cut_ || !tensors[i].place.contiguous();
    const auto tensor_chunks =
        static_cast<std::uint32_t>((tensors[i].entry.count + kChunk - 1) / kChunk);
    std::fill_n(host.chunk_tensor + chunk, tensor_chunks, i);
    chunk += tensor_chunks;
  }
  *host.bad = kNoneBad;
  const PatchParts dev = carve_patch(patch.dev_, patch.tensors_, patch.chunks_);
  const cudaStream_t queue = native(stream);
  const auto place = [&](void* to, const void* from, std::uint64_t bytes) {
    return driftless::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, queue),
                                  "placing a patch");
  };
  DRIFTLESS_RETURN_IF_ERROR(place(dev.tensors, host.tensors, tensors.size() * sizeof(PatchTensor)));
  DRIFTLESS_RETURN_IF_ERROR(
      place(dev.chunk_tensor, host.chunk_tensor, chunks * sizeof(std::uint32_t)));
  DRIFTLESS_RETURN_IF_ERROR(place(dev.bad, host.bad, sizeof(std::uint32_t)));
  if (patch.chunks_ == 0) return patch;
  if (coding == PositionCoding::kGaps) {
    sum_chunks<<<patch_blocks(patch.chunks_ + 1), kPatchWarps * 32, 0, queue>>>(dev, positions_dev,
                                                                                patch.chunks_);
    DRIFTLESS_RETURN_IF_ERROR(check_launch("sum_chunks"));
    std::size_t bytes = scan_bytes(patch.chunks_ + 1);
    DRIFTLESS_RETURN_IF_ERROR(driftless::cuda::check(
        cub::DeviceScan::ExclusiveScan(dev.scan, bytes, dev.before, dev.before, BoundedSum{},
                                       std::uint64_t{0}, patch.chunks_ + 1, queue),
        "the scan over chunks"));
    check_gaps<<<(patch.tensors_ + 255) / 256, 256, 0, queue>>>(dev, patch.tensors_, patch.chunks_);
    DRIFTLESS_RETURN_IF_ERROR(check_launch("check_gaps"));
  } else {
    check_indices<<<patch_blocks(patch.chunks_), kPatchWarps * 32, 0, queue>>>(dev, positions_dev,
                                                                               patch.chunks_);
    DRIFTLESS_RETURN_IF_ERROR(check_launch("check_indices"));
  }
  DRIFTLESS_RETURN_IF_ERROR(driftless::cuda::check(
      cudaMemcpyAsync(host.bad, dev.bad, sizeof(std::uint32_t), cudaMemcpyDeviceToHost, queue),
      "fetching the verdict on positions"));
  return patch;
}

Status Patch::find_ends(std::uint64_t* ends_dev, Stream stream) const {
  if (chunks_ == 0) return {};
  const auto kernel = coding_ == PositionCoding::kGaps ? ends_of<true> : ends_of<false>;
  kernel<<<(tensors_ + 255) / 256, 256, 0, native(stream)>>>(
      carve_patch(dev_, tensors_, chunks_), positions_dev_, tensors_, chunks_, ends_dev);
  return check_launch("ends_of");
}

std::optional<std::size_t> Patch::first_bad() const {
  const PatchParts host = carve_patch(host_, tensors_, chunks_, MemoryKind::kHost);
  return *host.bad == kNoneBad ? std::nullopt : std::optional<std::size_t>(*host.bad);
}

Status Patch::check() const {
  const std::optional<std::size_t> bad = first_bad();
  if (!bad) return {};
  const PatchTensor& tensor =
      carve_patch(host_, tensors_, chunks_, MemoryKind::kHost).tensors[*bad];
  return error(StatusCode::kCorrupt, "tensor number ", *bad, " of the patch: its ",
               tensor.entry.count, " positions do not ascend, or go past its ", tensor.units,
               " units");
}

}  // namespace driftless::cuda
