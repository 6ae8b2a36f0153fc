// SPDX-License-Identifier: Apache-2.0
// Memory and streams of a GPU, owned. Library driftless_device; includes no CUDA header.
//
// Everything works on the device that was current when it was made, and may end on any thread.
// Errors: kNoSpace where memory is lacking, kIo for what else CUDA says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/memory_kind.h"
#include "core/status.h"
#include "core/thread_gpu.h"
#include "kernels/cuda/operations.h"
#include "plugin/device/growing_memory.h"

namespace driftless {

// kUnsupported, with the reason, where this process has no GPU that CUDA can use.
// Else the device is the calling thread's from then on.
[[nodiscard]] Status check_device(int device);

// A device is the calling thread's for as long as this lives; then the one is that it had.
class OnDevice {
 public:
  explicit OnDevice(int device);
  // check_device()'s.
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  KeepThreadGpu keep_;
  Status status_;
};

// A stretch of device memory, or of pinned host memory.
class DeviceBuffer {
 public:
  static constexpr std::uint64_t kKept = std::uint64_t{16} << 20;

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~DeviceBuffer();
  [[nodiscard]] static Result<DeviceBuffer> device(std::uint64_t bytes);
  [[nodiscard]] static Result<DeviceBuffer> pinned(std::uint64_t bytes);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Room for at least so many bytes, of the same kind; what it held is lost where it grows, so no
  // work may be under way on it. Nobody else on the GPU waits for that: device memory grows in its
  // place, to what is needed, and pinned memory of up to kKept bytes stays until the end (it grows
  // by half at least).
  [[nodiscard]] Status reserve(std::uint64_t bytes, MemoryKind kind);

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(kind_, other.kind_);
    std::swap(device_, other.device_);
    growing_.swap(other.growing_);
    kept_.swap(other.kept_);
  }
  [[nodiscard]] Status grow_device(std::uint64_t bytes);
  [[nodiscard]] Status grow_pinned(std::uint64_t bytes);

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  int device_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  std::unique_ptr<GrowingMemory> growing_;  // whose memory it is, if any
  std::vector<DeviceBuffer> kept_;          // what was too small
};

// A stream of its own, at the lowest priority: training and generating go first.
class DeviceStream {
 public:
  DeviceStream() = default;
  DeviceStream(DeviceStream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)), device_(other.device_) {}
  DeviceStream& operator=(DeviceStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceStream();
  [[nodiscard]] static Result<DeviceStream> make();

  [[nodiscard]] cuda::Stream get() const { return stream_; }
  // Either side of the bus, in any direction.
  [[nodiscard]] Status copy(void* to, const void* from, std::uint64_t bytes) const;
  [[nodiscard]] Status clear(void* to, std::uint64_t bytes) const;  // to zero
  // Until all that was queued is done.
  [[nodiscard]] Status wait() const;

 private:
  cuda::Stream stream_ = nullptr;
  int device_ = 0;
};

// A point in a stream's work, which another stream or the host waits for.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  DeviceEvent(DeviceEvent&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)), device_(other.device_) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceEvent();
  [[nodiscard]] static Result<DeviceEvent> make();

  [[nodiscard]] Status record(const DeviceStream& stream) const;
  [[nodiscard]] Status hold(const DeviceStream& stream) const;  // the stream waits
  [[nodiscard]] Status wait() const;                            // the caller waits

 private:
  void* event_ = nullptr;
  int device_ = 0;
};

}  // namespace driftless
