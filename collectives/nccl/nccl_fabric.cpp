// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "collectives/nccl/medium.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_road.h"
#include "collectives/nccl/nccl_status.h"

namespace driftless {
namespace nccl {
namespace {

// Memory comes from a pool of its own and goes back to it in the order of a stream: cudaMalloc and
// cudaFree may wait for everything that runs, also for a broadcast whose peer is dead. Shared with
// the blocks, which may outlive the fabric.
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
    std::uint64_t keep = keep_bytes;  // unused, instead of being given back to the device
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

// Pinned memory, used again: pinning costs far more than the copy.
class PinnedPool {
 public:
  explicit PinnedPool(std::uint64_t idle_bytes) : most_(idle_bytes) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool() {
    for (const auto& [size, memory] : idle_) cudaFreeHost(memory);
  }

  // As much as asked for, or more: what it has is returned.
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

// Of the library that is loaded, which need not be the one that this was compiled with.
Result<int> own_version() {
  int version = 0;
  DRIFTLESS_RETURN_IF_ERROR(nccl_status(ncclGetVersion(&version), "asking for its version"));
  return version;
}

class NcclFabric final : public Fabric {
 public:
  NcclFabric(const NcclOptions& options, std::shared_ptr<DevicePool> pool)
      : options_(options),
        pool_(std::move(pool)),
        pinned_(std::make_shared<PinnedPool>(options.ring_bytes)) {}

  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kDevice; }

  [[nodiscard]] Result<Block> allocate(std::uint64_t size) override {
    if (size == 0) return Block{};
    DRIFTLESS_ASSIGN_OR_RETURN(void* const memory, pool_->take(size));
    std::shared_ptr<void> owner(memory, [pool = pool_](void* given) { pool->put(given); });
    return Block{std::move(owner), static_cast<std::byte*>(memory), size};
  }

  [[nodiscard]] Result<Block> allocate_host(std::uint64_t size) override {
    if (size == 0) return Block{};
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_ASSIGN_OR_RETURN(const auto taken, pinned_->take(size));
    std::shared_ptr<void> owner(taken.second, [pool = pinned_, taken](void*) { pool->put(taken); });
    return Block{std::move(owner), static_cast<std::byte*>(taken.second), size};
  }

  [[nodiscard]] Status copy(std::byte* to, const std::byte* from, std::uint64_t size) override {
    if (size == 0) return {};
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(
        cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, pool_->stream()), "copying a part"));
    return cuda_status(cudaStreamSynchronize(pool_->stream()), "copying a part");
  }

  [[nodiscard]] Status zero(std::byte* at, std::uint64_t size) override {
    const DeviceGuard guard(pool_->device());
    DRIFTLESS_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(at, 0, size, pool_->stream()), "clearing a part"));
    return cuda_status(cudaStreamSynchronize(pool_->stream()), "clearing a part");
  }

  [[nodiscard]] Result<std::vector<Hash128>> hash(
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

  [[nodiscard]] Result<std::string> new_meeting() override {
    const DeviceGuard guard(pool_->device());
    ncclUniqueId id;
    DRIFTLESS_RETURN_IF_ERROR(nccl_status(ncclGetUniqueId(&id), "making a unique id"));
    DRIFTLESS_ASSIGN_OR_RETURN(const int version, own_version());
    return make_meeting(std::string_view(id.internal, sizeof(id.internal)), version);
  }

  [[nodiscard]] Result<std::unique_ptr<Communicator>> connect(std::string_view meeting,
                                                              unsigned rank,
                                                              unsigned size) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const int version, own_version());
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
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted != cudaSuccess || options.device < 0 || options.device >= devices) {
    cudaGetLastError();
    return error(StatusCode::kUnsupported, "nccl: there is no GPU ", options.device, " here (",
                 devices, " found",
                 counted == cudaSuccess ? std::string(")")
                                        : concat("; CUDA says ", cudaGetErrorString(counted), ")"));
  }
  auto pool = std::make_shared<nccl::DevicePool>(options.device);
  DRIFTLESS_RETURN_IF_ERROR(pool->open(options.ring_bytes));
  return std::shared_ptr<nccl::Fabric>(
      std::make_shared<nccl::NcclFabric>(options, std::move(pool)));
}

}  // namespace driftless
