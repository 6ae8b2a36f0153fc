// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/tensor_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "plugin/device/device_memory.h"

namespace driftless {
namespace {

// Reads a written value from the device, after the stream has passed it.
template <typename Value>
Status fetch(Value* to, const std::byte* from_dev, void* stream) {
  const DeviceStream borrowed = DeviceStream::borrowed(stream);
  DRIFTLESS_RETURN_IF_ERROR(borrowed.copy(to, from_dev, sizeof(Value)));
  return borrowed.wait();
}

// Makes the patch of one tensor, proves its positions, and lets `use` queue its work.
template <typename Use>
Status with_patch(const DeviceUnits& tensor, const DevicePositions& positions, void* stream,
                  const Use& use) {
  if (positions.count == 0) return {};
  cuda::Patch::Tensor described;
  described.data_dev = tensor.data_dev;
  described.units = tensor.units;
  described.entry.count = positions.count;
  described.entry.position_bytes = positions.bytes;
  const std::span<const cuda::Patch::Tensor> one(&described, 1);
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceWorkspace memory,
                             DeviceWorkspace::make(cuda::Patch::workspace_size(one)));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const cuda::Patch patch,
      cuda::Patch::make(one, tensor.unit_bytes, cuda::PositionCoding::kIndices, positions.data_dev,
                        memory.get(), stream));
  DRIFTLESS_RETURN_IF_ERROR(DeviceStream::borrowed(stream).wait());
  DRIFTLESS_RETURN_IF_ERROR(patch.check());
  DRIFTLESS_RETURN_IF_ERROR(use(patch));
  return DeviceStream::borrowed(stream).wait();
}

struct Attempt {
  std::uint64_t changed = 0;  // more than the room: nothing was written
  DeviceChanges found;
};

Result<Attempt> try_diff(const DeviceUnits& before, const std::byte* after_dev, std::uint64_t room,
                         void* stream) {
  const std::span<const std::uint64_t> units(&before.units, 1);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const DeviceWorkspace memory,
      DeviceWorkspace::make(cuda::DiffBatch::workspace_size(units, before.unit_bytes, room)));
  DRIFTLESS_ASSIGN_OR_RETURN(
      cuda::DiffBatch batch,
      cuda::DiffBatch::make(units, before.unit_bytes, room, memory.get(), stream));
  Attempt attempt;
  DRIFTLESS_ASSIGN_OR_RETURN(attempt.found.positions_dev,
                             allocate_on_device(batch.max_position_bytes(true)));
  DRIFTLESS_ASSIGN_OR_RETURN(attempt.found.values_dev, allocate_on_device(batch.max_value_bytes()));
  cuda::DiffBatch::Tensor tensor;
  tensor.old_dev = before.data_dev;
  tensor.new_dev = after_dev;
  tensor.huge = true;  // positions of 8 bytes, whatever its size
  DRIFTLESS_RETURN_IF_ERROR(batch.run(std::span(&tensor, 1), cuda::PositionCoding::kIndices,
                                      attempt.found.positions_dev.get(),
                                      attempt.found.values_dev.get(), stream));
  DRIFTLESS_RETURN_IF_ERROR(DeviceStream::borrowed(stream).wait());
  attempt.changed = batch.results().changed;
  attempt.found.count = attempt.changed;
  return attempt;
}

}  // namespace

Result<std::shared_ptr<std::byte>> allocate_on_device(std::uint64_t bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer buffer, DeviceBuffer::make(bytes));
  return buffer.memory();
}

Status check_device_memory(const void* data, int device) {
  cudaPointerAttributes found{};
  const cudaError_t code = cudaPointerGetAttributes(&found, data);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  const bool managed = code == cudaSuccess && found.type == cudaMemoryTypeManaged;
  const bool here =
      code == cudaSuccess && found.type == cudaMemoryTypeDevice && found.device == device;
  if (managed || here) return {};
  return error(StatusCode::kInvalidArgument, "its address is no memory of GPU ", device);
}

Status gather_on_device(const DeviceUnits& from, const DevicePositions& positions,
                        std::byte* values_dev, void* stream) {
  return with_patch(from, positions, stream,
                    [&](const cuda::Patch& patch) { return patch.gather(values_dev, stream); });
}

Status scatter_on_device(const DeviceUnits& to, const DevicePositions& positions,
                         const std::byte* values_dev, void* stream) {
  return with_patch(to, positions, stream,
                    [&](const cuda::Patch& patch) { return patch.scatter(values_dev, stream); });
}

Result<std::uint64_t> masked_overwrite_on_device(const DeviceUnits& to, const std::byte* source_dev,
                                                 std::uint64_t sentinel, void* stream) {
  if (to.units == 0) return std::uint64_t{0};
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer written, DeviceBuffer::make(sizeof(std::uint64_t)));
  DRIFTLESS_RETURN_IF_ERROR(
      DeviceStream::borrowed(stream).clear(written.data(), sizeof(std::uint64_t)));
  DRIFTLESS_RETURN_IF_ERROR(
      cuda::masked_overwrite(to.data_dev, source_dev, to.units, to.unit_bytes, sentinel,
                             reinterpret_cast<std::uint64_t*>(written.data()), stream));
  std::uint64_t count = 0;
  DRIFTLESS_RETURN_IF_ERROR(fetch(&count, written.data(), stream));
  return count;
}

// Allocates room for the changes of a usual training step; if there are more, repeats with enough.
Result<DeviceChanges> diff_on_device(const DeviceUnits& before, const std::byte* after_dev,
                                     void* stream) {
  constexpr std::uint64_t kLeastRoom = 1 << 16;
  if (before.units == 0) return DeviceChanges();
  std::uint64_t room = std::min(before.units, std::max(before.units / 16, kLeastRoom));
  DRIFTLESS_ASSIGN_OR_RETURN(Attempt attempt, try_diff(before, after_dev, room, stream));
  if (attempt.changed <= room) return std::move(attempt.found);
  room = attempt.changed;
  attempt = Attempt();  // both at once might not fit
  DRIFTLESS_ASSIGN_OR_RETURN(attempt, try_diff(before, after_dev, room, stream));
  if (attempt.changed <= room) return std::move(attempt.found);
  return error(StatusCode::kMismatch, "the tensors were written to while they were compared");
}

Result<Digest> digest_on_device(std::string_view tensor, std::span<const std::byte> bytes_dev,
                                void* stream) {
  const cuda::DigestPiece piece{bytes_dev.data(), bytes_dev.size(), 0, digest_tensor_key(tensor)};
  const std::span<const cuda::DigestPiece> one(&piece, 1);
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceWorkspace memory,
                             DeviceWorkspace::make(cuda::digest_workspace_size(one)));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer sums,
                             DeviceBuffer::make(cuda::kDigestSums * sizeof(std::uint64_t)));
  DRIFTLESS_RETURN_IF_ERROR(
      cuda::digest(one, memory.get(), reinterpret_cast<std::uint64_t*>(sums.data()), stream));
  std::array<std::uint64_t, cuda::kDigestSums> fetched{};
  DRIFTLESS_RETURN_IF_ERROR(fetch(&fetched, sums.data(), stream));
  return cuda::digest_from_sums(fetched);
}

}  // namespace driftless
