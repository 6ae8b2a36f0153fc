// SPDX-License-Identifier: Apache-2.0
// Memory and streams of a GPU, owned by objects. Library driftless_device; includes no CUDA header.
//
// Each object works on the device that was current when it was made, and may be destroyed on any
// thread. Errors: kNoSpace if memory runs out, kIo for other CUDA errors.
#pragma once

#include "core/memory_kind.h"
#include "core/thread_gpu.h"
#include "kernels/cuda/operations.h"

namespace driftless {

// Makes the device current on the calling thread. kUnsupported, with the reason, if this process
// has no GPU that CUDA can use.
[[nodiscard]] Status check_device(int device);

// Makes a device current on the thread for the object's lifetime; then restores the previous one.
class OnDevice {
 public:
  explicit OnDevice(int device);
  // Fails with check_device()'s status.
  [[nodiscard]] static Result<std::unique_ptr<const OnDevice>> enter(int device);
  // The result of check_device().
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  KeepThreadGpu keep_;
  Status status_;
};

// Rounds up to where the next item begins in device memory that holds several.
[[nodiscard]] constexpr std::uint64_t device_aligned(std::uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

class GrowingMemory;

// A range of device memory, or of pinned host memory.
class DeviceBuffer {
 public:
  static constexpr std::uint64_t kKept = std::uint64_t{16} << 20;

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&&) = default;
  DeviceBuffer& operator=(DeviceBuffer&&) = default;
  [[nodiscard]] static Result<DeviceBuffer> make(std::uint64_t bytes,
                                                 MemoryKind kind = MemoryKind::kDevice);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::uint64_t size() const { return memory_ ? size_ : 0; }
  // Freed with the last reference.
  [[nodiscard]] const std::shared_ptr<std::byte>& memory() const { return memory_; }
  // Makes the buffer at least so large, of this kind. If it grows, its contents are lost, so no
  // work on it may be pending; other work on the GPU is not stopped. Device memory grows in place,
  // to what is needed. Pinned memory grows at least by half; replaced memory of up to kKept bytes
  // is freed only with the buffer.
  [[nodiscard]] Status reserve(std::uint64_t bytes, MemoryKind kind);

 private:
  [[nodiscard]] Status grow_device(std::uint64_t bytes);
  [[nodiscard]] Status grow_pinned(std::uint64_t bytes);

  std::shared_ptr<std::byte> memory_;
  std::uint64_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  std::shared_ptr<GrowingMemory> growing_;  // the growing memory that memory_ is in, if any
  std::vector<DeviceBuffer> kept_;          // earlier, smaller memory
};

// Destroys a CUDA object on the device that was current when it was made.
struct DeviceDeleter {
  int device = 0;
  void (*destroy)(void*) = nullptr;  // null: borrowed
  void operator()(void* made) const;
};
using DeviceHandle = std::unique_ptr<void, DeviceDeleter>;

// A stream of its own, at the lowest priority: training and generation come first.
class DeviceStream {
 public:
  [[nodiscard]] static Result<DeviceStream> make();
  // A borrowed stream, which outlives this (null: the default one).
  [[nodiscard]] static DeviceStream borrowed(cuda::Stream stream);

  [[nodiscard]] cuda::Stream get() const { return stream_.get(); }
  // Queues a copy in any direction; each side may be host or device memory.
  [[nodiscard]] Status copy(void* to, const void* from, std::uint64_t bytes) const;
  [[nodiscard]] Status clear(void* to, std::uint64_t bytes) const;  // to zero
  // Waits until all queued work is done.
  [[nodiscard]] Status wait() const;

 private:
  DeviceHandle stream_;
};

// A point in a stream's work that another stream or the host waits for.
class DeviceEvent {
 public:
  [[nodiscard]] static Result<DeviceEvent> make();

  [[nodiscard]] Status record(const DeviceStream& stream) const;
  [[nodiscard]] Status hold(const DeviceStream& stream) const;  // the stream waits
  [[nodiscard]] Status wait() const;                            // the caller waits

 private:
  DeviceHandle event_;
};

// Memory of one kind that is taken piece by piece and given back all at once. Blocks are kept for
// the next round, because allocating device memory stops the GPU.
class DeviceArena {
 public:
  explicit DeviceArena(MemoryKind kind) : kind_(kind) {}
  // Aligned to 256 bytes.
  [[nodiscard]] Result<std::byte*> take(std::uint64_t bytes);
  // Gives back everything. Frees blocks that the last round did not use.
  void reset();
  // After reset(): provides so many bytes in one block, which grows in place (no work on it may be
  // pending).
  [[nodiscard]] Status foresee(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t held_bytes() const;

 private:
  MemoryKind kind_;
  DeviceBuffer foreseen_;
  std::uint64_t foreseen_used_ = 0;
  std::vector<DeviceBuffer> blocks_;
  std::size_t block_ = 0;   // the block that is being filled
  std::uint64_t used_ = 0;  // bytes of it
};

// Copies host memory of any kind to the device, through pinned slots: some are filled while others
// are being sent. One thread at a time calls it; the call fills slots on up to kLanes threads, each
// with slots of its own, which end before it returns.
class Uploader {
 public:
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{2} << 20;

  Uploader() = default;
  [[nodiscard]] static Result<Uploader> make();

  struct Stretch {
    std::byte* to_dev = nullptr;
    std::span<const std::byte> from;
  };
  // Queues the copies on `stream`, in any order among themselves; the sources may be freed when the
  // call returns. Use the same stream in every call.
  [[nodiscard]] Status copy(std::span<const Stretch> stretches, const DeviceStream& stream);
  [[nodiscard]] Status copy(std::byte* to_dev, std::span<const std::byte> from,
                            const DeviceStream& stream) {
    const Stretch stretch{to_dev, from};
    return copy({&stretch, 1}, stream);
  }
  // Copies from the device into `to`; waits for the copy.
  [[nodiscard]] Status read(std::span<std::byte> to, const std::byte* from_dev,
                            const DeviceStream& stream);

  [[nodiscard]] std::uint64_t pinned_bytes() const;

 private:
  // A single thread fills slots more slowly than the bus empties them.
  static constexpr unsigned kLanes = 4;
  static constexpr unsigned kLaneSlots = 2;
  struct Slot {
    DeviceBuffer buffer;
    DeviceEvent travelled;
  };
  // The next slot of a lane; waits until its previous copy is done.
  [[nodiscard]] Slot& next(unsigned lane) {
    return slots_[lane * kLaneSlots + turns_[lane]++ % kLaneSlots];
  }
  // Copies a piece of at most kSlotBytes.
  [[nodiscard]] Status copy_piece(const Stretch& piece, unsigned lane, const DeviceStream& stream);

  std::array<Slot, std::size_t{kLanes} * kLaneSlots> slots_;
  std::array<std::size_t, kLanes> turns_{};  // each entry belongs to its lane
};

// The memory that an operation works in.
struct DeviceWorkspace {
  DeviceBuffer dev, host;  // host: pinned

  [[nodiscard]] static Result<DeviceWorkspace> make(const cuda::WorkspaceSize& size);
  [[nodiscard]] cuda::Workspace get() const {
    return {dev.data(), dev.size(), host.data(), host.size()};
  }
};

}  // namespace driftless
