// SPDX-License-Identifier: Apache-2.0
// Memory and streams of a GPU, owned. Library driftless_device; includes no CUDA header.
//
// Everything works on the device that was current when it was made, and may end on any thread.
// Errors: kNoSpace if memory is lacking, kIo for what else CUDA says.
#pragma once

#include "core/memory_kind.h"
#include "core/thread_gpu.h"
#include "kernels/cuda/operations.h"

namespace driftless {

// kUnsupported, with the reason, if this process has no GPU that CUDA can use.
// Else the device is the calling thread's from then on.
[[nodiscard]] Status check_device(int device);

// A device is the calling thread's for as long as this lives; then the one is that it had.
class OnDevice {
 public:
  explicit OnDevice(int device);
  // check_device()'s status, if it is not ok.
  [[nodiscard]] static Result<std::unique_ptr<const OnDevice>> enter(int device);
  // check_device()'s.
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  KeepThreadGpu keep_;
  Status status_;
};

// Where places begin in device memory that holds several.
[[nodiscard]] constexpr std::uint64_t device_aligned(std::uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

class GrowingMemory;

// A stretch of device memory, or of pinned host memory.
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
  // Goes with the last who has it.
  [[nodiscard]] const std::shared_ptr<std::byte>& memory() const { return memory_; }
  // Room for at least so many bytes, of the same kind; what it held is lost if it grows, so no
  // work may be under way on it. Nobody else on the GPU waits for that: device memory grows in its
  // place, to what is needed, and pinned memory of up to kKept bytes stays until the end (it grows
  // by half at least).
  [[nodiscard]] Status reserve(std::uint64_t bytes, MemoryKind kind);

 private:
  [[nodiscard]] Status grow_device(std::uint64_t bytes);
  [[nodiscard]] Status grow_pinned(std::uint64_t bytes);

  std::shared_ptr<std::byte> memory_;
  std::uint64_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  std::shared_ptr<GrowingMemory> growing_;  // whose memory it is, if any
  std::vector<DeviceBuffer> kept_;          // what was too small
};

// What CUDA made, destroyed on the device that was current then.
struct DeviceDeleter {
  int device = 0;
  void (*destroy)(void*) = nullptr;  // null: it is borrowed
  void operator()(void* made) const;
};
using DeviceHandle = std::unique_ptr<void, DeviceDeleter>;

// A stream of its own, at the lowest priority: training and generating go first.
class DeviceStream {
 public:
  [[nodiscard]] static Result<DeviceStream> make();
  // Somebody else's, which outlives it (null: the default one).
  [[nodiscard]] static DeviceStream borrowed(cuda::Stream stream);

  [[nodiscard]] cuda::Stream get() const { return stream_.get(); }
  // Either side of the bus, in any direction.
  [[nodiscard]] Status copy(void* to, const void* from, std::uint64_t bytes) const;
  [[nodiscard]] Status clear(void* to, std::uint64_t bytes) const;  // to zero
  // Until all that was queued is done.
  [[nodiscard]] Status wait() const;

 private:
  DeviceHandle stream_;
};

// A point in a stream's work, which another stream or the host waits for.
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
// the next round: taking memory from a GPU stops it.
class DeviceArena {
 public:
  explicit DeviceArena(MemoryKind kind) : kind_(kind) {}
  // At a multiple of 256 bytes.
  [[nodiscard]] Result<std::byte*> take(std::uint64_t bytes);
  // Everything may be taken again. Blocks that the last round did not touch are freed.
  void reset();
  // After reset(): so many bytes come from one block, which grows in its place (no work may be
  // under way on it).
  [[nodiscard]] Status foresee(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t held_bytes() const;

 private:
  MemoryKind kind_;
  DeviceBuffer foreseen_;
  std::uint64_t foreseen_used_ = 0;
  std::vector<DeviceBuffer> blocks_;
  std::size_t block_ = 0;   // the one that is being filled
  std::uint64_t used_ = 0;  // of it
};

// Copies host memory of any kind to the device, through pinned slots: some are filled while others
// travel. One thread at a time calls it; it fills slots on up to kLanes threads, which have their
// own slots, and have ended when the call returns.
class Uploader {
 public:
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{2} << 20;

  Uploader() = default;
  [[nodiscard]] static Result<Uploader> make();

  struct Stretch {
    std::byte* to_dev = nullptr;
    std::span<const std::byte> from;
  };
  // Queues the copies on `stream`, in any order among themselves; what they are from may go when it
  // returns. Always with the same stream.
  [[nodiscard]] Status copy(std::span<const Stretch> stretches, const DeviceStream& stream);
  [[nodiscard]] Status copy(std::byte* to_dev, std::span<const std::byte> from,
                            const DeviceStream& stream) {
    const Stretch stretch{to_dev, from};
    return copy({&stretch, 1}, stream);
  }
  // Fills `to` from the device; waits for it.
  [[nodiscard]] Status read(std::span<std::byte> to, const std::byte* from_dev,
                            const DeviceStream& stream);

  [[nodiscard]] std::uint64_t pinned_bytes() const;

 private:
  // One thread does not fill slots as fast as the bus empties them.
  static constexpr unsigned kLanes = 4;
  static constexpr unsigned kLaneSlots = 2;
  struct Slot {
    DeviceBuffer buffer;
    DeviceEvent travelled;
  };
  // The next slot of a lane, which has travelled once it is waited for.
  [[nodiscard]] Slot& next(unsigned lane) {
    return slots_[lane * kLaneSlots + turns_[lane]++ % kLaneSlots];
  }
  // A piece of at most kSlotBytes.
  [[nodiscard]] Status copy_piece(const Stretch& piece, unsigned lane, const DeviceStream& stream);

  std::array<Slot, std::size_t{kLanes} * kLaneSlots> slots_;
  std::array<std::size_t, kLanes> turns_{};  // each is its lane's alone
};

// Memory that an operation works in.
struct DeviceWorkspace {
  DeviceBuffer dev, host;  // host: pinned

  [[nodiscard]] static Result<DeviceWorkspace> make(const cuda::WorkspaceSize& size);
  [[nodiscard]] cuda::Workspace get() const {
    return {dev.data(), dev.size(), host.data(), host.size()};
  }
};

}  // namespace driftless
