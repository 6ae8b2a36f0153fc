// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace driftless {
namespace {

Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  const bool full = code == cudaErrorMemoryAllocation;
  if (full) static_cast<void>(cudaGetLastError());  // it is not a broken context
  return error(full ? StatusCode::kNoSpace : StatusCode::kIo, what, ": ", cudaGetErrorString(code));
}

cudaStream_t native(const DeviceStream& stream) { return static_cast<cudaStream_t>(stream.get()); }
cudaEvent_t native(void* event) { return static_cast<cudaEvent_t>(event); }

int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

}  // namespace

Status check_device(int device) {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || device < 0 || device >= devices) {
    return error(StatusCode::kUnsupported, "GPU ", device, " cannot be used: ",
                 code == cudaSuccess ? "CUDA sees fewer" : cudaGetErrorString(code), " (", devices,
                 " found); use memory of the host, or see nvidia-smi");
  }
  return check(cudaSetDevice(device), "choosing a GPU");
}

OnDevice::OnDevice(int device) : status_(check_device(device)) {}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const OnDevice on(device_);
  if (growing_ != nullptr) {
    growing_.reset();
  } else if (kind_ == MemoryKind::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

Result<DeviceBuffer> DeviceBuffer::device(std::uint64_t bytes) {
  DeviceBuffer buffer;
  void* memory = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMalloc(&memory, std::max<std::uint64_t>(bytes, 1)), "taking device memory")
          .with_context(concat(bytes, " bytes on the GPU")));
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = bytes;
  buffer.device_ = current_device();
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::pinned(std::uint64_t bytes) {
  DeviceBuffer buffer;
  void* memory = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaMallocHost(&memory, std::max<std::uint64_t>(bytes, 1)), "taking pinned memory")
          .with_context(concat(bytes, " bytes of the host, pinned")));
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = bytes;
  buffer.device_ = current_device();
  buffer.kind_ = MemoryKind::kHost;
  return buffer;
}

Status DeviceBuffer::reserve(std::uint64_t bytes, MemoryKind kind) {
  if (size_ >= bytes && data_ != nullptr && kind_ == kind) return {};
  if (kind_ != kind) *this = DeviceBuffer();
  return kind == MemoryKind::kDevice ? grow_device(bytes) : grow_pinned(bytes);
}

Status DeviceBuffer::grow_device(std::uint64_t bytes) {
  if (growing_ == nullptr) {
    *this = DeviceBuffer();  // both at once might not fit
    growing_ = GrowingMemory::make();
    device_ = current_device();
  }
  if (growing_ == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(*this, device(bytes));
    return {};
  }
  DRIFTLESS_RETURN_IF_ERROR(growing_->grow(std::max<std::uint64_t>(bytes, 1))
                                .with_context(concat(bytes, " bytes on the GPU")));
  data_ = growing_->data();
  size_ = growing_->size();
  return {};
}

Status DeviceBuffer::grow_pinned(std::uint64_t bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(DeviceBuffer larger, pinned(std::max(bytes, size_ + size_ / 2)));
  larger.kept_.swap(kept_);
  if (data_ != nullptr && size_ <= kKept) larger.kept_.push_back(std::move(*this));
  *this = std::move(larger);
  return {};
}

DeviceStream::~DeviceStream() {
  if (stream_ == nullptr) return;
  const OnDevice on(device_);
  cudaStreamDestroy(native(*this));
}

Result<DeviceStream> DeviceStream::make() {
  int least = 0, greatest = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  cudaStream_t made = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, least), "making a stream"));
  DeviceStream stream;
  stream.stream_ = made;
  stream.device_ = current_device();
  return stream;
}

Status DeviceStream::copy(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(*this)), "copying");
}

Status DeviceStream::clear(void* to, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  return check(cudaMemsetAsync(to, 0, bytes, native(*this)), "clearing");
}

Status DeviceStream::wait() const {
  return check(cudaStreamSynchronize(native(*this)), "waiting for the GPU");
}

DeviceEvent::~DeviceEvent() {
  if (event_ == nullptr) return;
  const OnDevice on(device_);
  cudaEventDestroy(native(event_));
}

Result<DeviceEvent> DeviceEvent::make() {
  cudaEvent_t made = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "making an event"));
  DeviceEvent event;
  event.event_ = made;
  event.device_ = current_device();
  return event;
}

Status DeviceEvent::record(const DeviceStream& stream) const {
  return check(cudaEventRecord(native(event_), native(stream)), "recording an event");
}
Status DeviceEvent::hold(const DeviceStream& stream) const {
  return check(cudaStreamWaitEvent(native(stream), native(event_), 0), "waiting for an event");
}
Status DeviceEvent::wait() const {
  return check(cudaEventSynchronize(native(event_)), "waiting for the GPU");
}

}  // namespace driftless
