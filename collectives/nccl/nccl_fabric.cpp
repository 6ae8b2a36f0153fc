// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstring>
#include <mutex>

#include "collectives/nccl/message.h"
#include "collectives/nccl/nccl_calls.h"
#include "collectives/nccl/nccl_road.h"
#include "core/thread_gpu.h"

namespace driftless {
namespace nccl {
namespace {

using std::chrono::milliseconds;

// NCCL's functions; make_nccl_fabric() has loaded them before anything here is created.
const NcclCalls& calls() { return **nccl_calls(); }

// Makes `device` current on this thread during its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) { cudaSetDevice(device); }

 private:
  KeepThreadGpu keep_;
};

Status cuda_status(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // clears the error, so that later calls do not find it
  const StatusCode meant =
      code == cudaErrorMemoryAllocation ? StatusCode::kNoSpace : StatusCode::kIo;
  return error(meant, "nccl: ", what, ": CUDA says ", cudaGetErrorString(code));
}

// kIo: the communicator is lost. ncclInProgress is ok.
Status nccl_status(ncclResult_t code, std::string_view what, ncclComm_t communicator = nullptr) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  const char* last = calls().get_last_error(communicator);
  std::string more = last == nullptr ? std::string() : std::string(last);
  for (char& c : more) {
    if (c == '\n') c = ' ';
  }

  return error(StatusCode::kIo, "nccl: ", what, ": NCCL says ", calls().get_error_string(code),
               more.empty() ? "" : "; ", more);
}

constexpr milliseconds kFarewell{200};

// One ncclComm_t and its stream.
//
// Non-blocking: NCCL's calls return at once, and ncclCommGetAsyncError reports their progress, so
// that a missing peer can be given up. The destructor first gives sent data a short time to leave
// the machine (another receiver may still be reading it), and then aborts.
class NcclCommunicator final : public Communicator {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(int device,
                                                                     const ncclUniqueId& id,
                                                                     unsigned rank, unsigned size) {
    std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(device));
    DRIFTLESS_RETURN_IF_ERROR(made->start(id, rank, size));
    return std::unique_ptr<Communicator>(std::move(made));
  }

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override {
    const DeviceGuard guard(device_);
    if (communicator_ != nullptr) {
      if (state_ == State::kIdle && !lost_ && calls().finalize(communicator_) == ncclInProgress) {
        const Deadline farewell = Deadline::after(kFarewell);
        Backoff backoff(std::chrono::microseconds(100), milliseconds(5));
        while (true) {
          const Result<bool> gone = async_done();
          if (!gone.ok() || *gone || !backoff.sleep(farewell)) break;
        }
      }
      calls().abort(communicator_);
    }
    if (ended_ != nullptr) cudaEventDestroy(ended_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Result<bool> poll() override {
    const DeviceGuard guard(device_);
    DRIFTLESS_ASSIGN_OR_RETURN(const bool ready, async_done());
    if (!ready) return false;
    if (state_ == State::kConnecting) state_ = State::kIdle;
    if (state_ == State::kLaunching) {
      DRIFTLESS_RETURN_IF_ERROR(cuda_status(cudaEventRecord(ended_, stream_), "a broadcast"));
      state_ = State::kRunning;
    }
    if (state_ == State::kRunning) {
      const cudaError_t ended = cudaEventQuery(ended_);
      if (ended == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
      }
      DRIFTLESS_RETURN_IF_ERROR(cuda_status(ended, "a broadcast"));
      state_ = State::kIdle;
    }
    return true;
  }

  Status broadcast(std::span<const Block> pieces) override {
    if (state_ != State::kIdle) {
      return error(StatusCode::kInternal, "nccl: a broadcast before the last one has ended");
    }
    const DeviceGuard guard(device_);
    state_ = State::kLaunching;
    DRIFTLESS_RETURN_IF_ERROR(nccl_status(calls().group_start(), "a broadcast"));
    ncclResult_t failure = ncclSuccess;
    for (const Block& piece : pieces) {
      if (piece.size == 0) continue;
      const ncclResult_t code = calls().broadcast(piece.data, piece.data, piece.size, ncclUint8, 0,
                                                  communicator_, stream_);
      if (code != ncclSuccess && code != ncclInProgress) failure = code;
    }
    const ncclResult_t ended = calls().group_end();
    DRIFTLESS_RETURN_IF_ERROR(nccl_status(failure, "a broadcast", communicator_));
    return nccl_status(ended, "a broadcast", communicator_);
  }

 private:
  // poll() waits first for NCCL's work (connecting, launching), then for the GPU's.
  enum class State : unsigned char { kConnecting, kIdle, kLaunching, kRunning };
  explicit NcclCommunicator(int device) : device_(device) {}
  [[nodiscard]] Status start(const ncclUniqueId& id, unsigned rank, unsigned size) {
    const DeviceGuard guard(device_);
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"));
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming), "making an event"));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return nccl_status(calls().init_rank(&communicator_, static_cast<int>(size), id,
                                         static_cast<int>(rank), &config),
                       "connecting");
  }

  [[nodiscard]] Result<bool> async_done() {
    ncclResult_t now = ncclSuccess;
    const Status polled =
        nccl_status(calls().get_async_error(communicator_, &now), "polling a communicator");
    const Status state = polled.ok() ? nccl_status(now, "a communicator", communicator_) : polled;
    if (!state.ok()) {
      lost_ = true;
      return state;
    }
    return now != ncclInProgress;
  }

  const int device_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ended_ = nullptr;
  State state_ = State::kConnecting;
  bool lost_ = false;
};

// Memory comes from a private pool and returns to it in the order of a stream: cudaMalloc and
// cudaFree may wait for all running work, including a broadcast whose peer is dead. Shared with the
// blocks, which may outlive the fabric.
class DevicePool {
 public:
  explicit DevicePool(int device) : device_(device) {}
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  ~DevicePool() {
    const DeviceGuard guard(device_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }

  [[nodiscard]] Status open(std::uint64_t keep_bytes) {
    const DeviceGuard guard(device_);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device_;
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaMemPoolCreate(&pool_, &properties), "making a memory pool"));
    std::uint64_t keep = keep_bytes;  // unused memory that is not returned to the device
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
                    "setting up a memory pool"));
    return cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                       "making a stream");
  }

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  [[nodiscard]] Result<void*> take(std::uint64_t size) {
    const DeviceGuard guard(device_);
    void* memory = nullptr;
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(cudaMallocFromPoolAsync(&memory, size, pool_, stream_),
                                          concat("allocating ", size, " bytes on the device")));
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaStreamSynchronize(stream_), "waiting for device memory"));
    return memory;
  }

  void put(void* memory) {
    const DeviceGuard guard(device_);
    cudaFreeAsync(memory, stream_);
  }

 private:
  const int device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// A pool of pinned memory: pinning costs far more than the copy.
class PinnedPool {
 public:
  explicit PinnedPool(std::uint64_t idle_bytes) : most_(idle_bytes) {}
  ~PinnedPool() {
    for (const auto& [size, memory] : idle_) cudaFreeHost(memory);
  }

  // At least `size` bytes; returns the actual size with the memory.
  [[nodiscard]] Result<std::pair<std::uint64_t, void*>> take(std::uint64_t size) {
    {
      const std::scoped_lock lock(mutex_);
      for (auto it = idle_.begin(); it != idle_.end(); ++it) {
        if (it->first < size || it->first / 4 > size) continue;
        const auto found = *it;
        idle_.erase(it);
        bytes_ -= found.first;
        return found;
      }
    }
    void* memory = nullptr;
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(cudaHostAlloc(&memory, size, cudaHostAllocDefault),
                                          concat("pinning ", size, " bytes of host memory")));
    return std::pair(size, memory);
  }

  void put(std::pair<std::uint64_t, void*> block) {
    {
      const std::scoped_lock lock(mutex_);
      if (bytes_ + block.first <= most_) {
        idle_.push_back(block);
        bytes_ += block.first;
        return;
      }
    }
    cudaFreeHost(block.second);
  }

 private:
  const std::uint64_t most_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, void*>> idle_;
  std::uint64_t bytes_ = 0;
};

// The version of the loaded library, which may differ from the one at compile time.
Result<int> library_version() {
  int version = 0;
  DRIFTLESS_RETURN_IF_ERROR(nccl_status(calls().get_version(&version), "reading NCCL's version"));
  return version;
}

class NcclFabric final : public Fabric {
 public:
  NcclFabric(const NcclOptions& options, std::shared_ptr<DevicePool> pool)
      : options_(options),
        pool_(std::move(pool)),
        pinned_(std::make_shared<PinnedPool>(options.ring_bytes)) {}

  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kDevice; }

  Result<Block> allocate(std::uint64_t size) override {
    if (size == 0) return Block{};
    DRIFTLESS_ASSIGN_OR_RETURN(void* const memory, pool_->take(size));
    std::shared_ptr<void> owner(memory, [pool = pool_](void* given) { pool->put(given); });
    return Block{std::move(owner), static_cast<std::byte*>(memory), size};
  }

  Result<Block> allocate_host(std::uint64_t size) override {
    if (size == 0) return Block{};
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_ASSIGN_OR_RETURN(const auto taken, pinned_->take(size));
    std::shared_ptr<void> owner(taken.second, [pool = pinned_, taken](void*) { pool->put(taken); });
    return Block{std::move(owner), static_cast<std::byte*>(taken.second), size};
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t size) override {
    if (size == 0) return {};
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(
        cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, pool_->stream()), "copying a part"));
    return cuda_status(cudaStreamSynchronize(pool_->stream()), "copying a part");
  }

  Status zero(std::byte* at, std::uint64_t size) override {
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(at, 0, size, pool_->stream()), "clearing a part"));
    return cuda_status(cudaStreamSynchronize(pool_->stream()), "clearing a part");
  }

  Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) override {
    const DeviceGuard guard(pool_->device());
    if (options_.hash) return options_.hash(stretches);
    std::vector<Hash128> hashes;
    for (const std::span<const std::byte> stretch : stretches) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Block host, allocate_host(stretch.size()));
      DRIFTLESS_RETURN_IF_ERROR(copy(host.data, stretch.data(), stretch.size()));
      hashes.push_back(xxh3_128(std::span<const std::byte>(host.data, stretch.size())));
    }
    return hashes;
  }

  Result<std::string> new_meeting() override {
    const DeviceGuard guard(pool_->device());
    ncclUniqueId id;
    DRIFTLESS_RETURN_IF_ERROR(nccl_status(calls().get_unique_id(&id), "making a unique id"));
    DRIFTLESS_ASSIGN_OR_RETURN(const int version, library_version());
    return make_meeting(std::string_view(id.internal, sizeof(id.internal)), version);
  }

  Result<std::unique_ptr<Communicator>> connect(std::string_view meeting, unsigned rank,
                                                unsigned size) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const int version, library_version());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view given, read_meeting(meeting, version));
    ncclUniqueId id;
    if (given.size() != sizeof(id.internal)) {
      return error(StatusCode::kCorrupt, "nccl: a unique id of ", given.size(), " bytes");
    }
    std::memcpy(id.internal, given.data(), sizeof(id.internal));
    return NcclCommunicator::connect(pool_->device(), id, rank, size);
  }

 private:
  const NcclOptions options_;
  const std::shared_ptr<DevicePool> pool_;
  const std::shared_ptr<PinnedPool> pinned_;
};

}  // namespace
}  // namespace nccl

Result<std::shared_ptr<nccl::Fabric>> make_nccl_fabric(const NcclOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(nccl::nccl_calls().status());
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted != cudaSuccess || options.device < 0 || options.device >= devices) {
    cudaGetLastError();
    return error(StatusCode::kUnsupported, "nccl: there is no GPU ", options.device, " here (",
                 devices, " found",
                 counted == cudaSuccess ? std::string(")")
                                        : concat("; CUDA says ", cudaGetErrorString(counted), ")"),
                 "; a GPU needs NVIDIA's driver for CUDA ", CUDART_VERSION / 1000, " or newer");
  }

  auto pool = std::make_shared<nccl::DevicePool>(options.device);
  DRIFTLESS_RETURN_IF_ERROR(pool->open(options.ring_bytes));
  return std::shared_ptr<nccl::Fabric>(
      std::make_shared<nccl::NcclFabric>(options, std::move(pool)));
}

}  // namespace driftless
