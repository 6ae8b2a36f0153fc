// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>

#include "core/parallel.h"

namespace driftless {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{32} << 20;  // of an arena

Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  const bool full = code == cudaErrorMemoryAllocation;
  if (full) static_cast<void>(cudaGetLastError());  // clears the error: the context still works
  return error(full ? StatusCode::kNoSpace : StatusCode::kIo, what, ": ", cudaGetErrorString(code));
}

cudaStream_t native_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t native_event(void* event) { return static_cast<cudaEvent_t>(event); }

int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

DeviceHandle handle(void* made, void (*destroy)(void*)) {
  return {made, {current_device(), destroy}};
}

std::shared_ptr<std::byte> owned(void* memory, void (*destroy)(void*)) {
  return {static_cast<std::byte*>(memory), DeviceDeleter{current_device(), destroy}};
}

// Driver functions from the library that the runtime has loaded, so that nothing is linked with it.
struct Driver {
  decltype(&cuDeviceGet) device = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;

  // Null if a function is missing.
  static const Driver* get() {
    static const std::optional<Driver> found = load();
    return found ? &*found : nullptr;
  }

 private:
  static std::optional<Driver> load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return std::nullopt;
    Driver made;
    bool complete = true;
    const auto take = [&](auto& call, const char* name) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
      complete = complete && call != nullptr;
    };
    take(made.device, "cuDeviceGet");
    take(made.attribute, "cuDeviceGetAttribute");
    take(made.granularity, "cuMemGetAllocationGranularity");
    take(made.reserve, "cuMemAddressReserve");
    take(made.free, "cuMemAddressFree");
    take(made.create, "cuMemCreate");
    take(made.release, "cuMemRelease");
    take(made.map, "cuMemMap");
    take(made.unmap, "cuMemUnmap");
    take(made.access, "cuMemSetAccess");
    return complete ? std::optional(made) : std::nullopt;
  }
};

CUmemAllocationProp memory_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

Status check_driver(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return {};
  return error(code == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::kNoSpace : StatusCode::kIo, what,
               ": the CUDA driver says ", static_cast<int>(code),
               code == CUDA_ERROR_OUT_OF_MEMORY ? " (out of memory)" : "");
}

}  // namespace

Status check_device(int device) {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || device < 0 || device >= devices) {
    return error(StatusCode::kUnsupported, "GPU ", device, " cannot be used: ",
                 code == cudaSuccess ? "CUDA sees fewer" : cudaGetErrorString(code), " (", devices,
                 " found); install NVIDIA's driver for CUDA ", CUDART_VERSION / 1000,
                 " or newer, use memory of the host, or see nvidia-smi");
  }
  return check(cudaSetDevice(device), "choosing a GPU");
}

OnDevice::OnDevice(int device) : status_(check_device(device)) {}

Result<std::unique_ptr<const OnDevice>> OnDevice::enter(int device) {
  auto on = std::make_unique<const OnDevice>(device);
  DRIFTLESS_RETURN_IF_ERROR(on->status());
  return on;
}

void DeviceDeleter::operator()(void* made) const {
  if (destroy == nullptr) return;
  const OnDevice on(device);
  destroy(made);
}

// Device memory that grows in place, and is only freed by the destructor, because cudaFree() waits
// for all queued work of the GPU. One thread at a time. Works on the device that was current when
// it was made.
class GrowingMemory {
 public:
  // Reserves addresses for all the memory of the device, and allocates none yet. Null if the driver
  // or the device does not support that (memory is then allocated by cudaMalloc()).
  [[nodiscard]] static std::shared_ptr<GrowingMemory> make();
  // Waits for the device first, as cudaFree() does.
  ~GrowingMemory();
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Grows to at least so many bytes. Does not wait for the device; existing contents stay, and work
  // on them may be under way. kNoSpace if memory runs out.
  [[nodiscard]] Status grow(std::uint64_t bytes);

 private:
  GrowingMemory() = default;

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0, most_ = 0;
  std::uint64_t granule_ = 0;  // memory is allocated in multiples of it
  int number_ = 0;             // of the device
  CUdevice device_ = 0;        // the driver's handle
};

std::shared_ptr<GrowingMemory> GrowingMemory::make() {
  const Driver* const driver = Driver::get();
  std::size_t left = 0, all = 0;
  int number = 0;
  if (driver == nullptr || cudaGetDevice(&number) != cudaSuccess ||
      cudaMemGetInfo(&left, &all) != cudaSuccess) {
    return nullptr;
  }
  CUdevice device = 0;
  int can = 0;
  if (driver->device(&device, number) != CUDA_SUCCESS ||
      driver->attribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) !=
          CUDA_SUCCESS ||
      can == 0) {
    return nullptr;
  }
  const CUmemAllocationProp properties = memory_of(device);
  std::size_t granule = 0;
  CUdeviceptr begin = 0;
  if (driver->granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
          CUDA_SUCCESS ||
      granule == 0) {
    return nullptr;
  }
  const std::uint64_t most = (all + granule - 1) / granule * granule;
  if (driver->reserve(&begin, most, 0, 0, 0) != CUDA_SUCCESS) return nullptr;
  std::shared_ptr<GrowingMemory> made(new GrowingMemory);
  made->number_ = number;
  made->device_ = device;
  made->data_ = std::bit_cast<std::byte*>(begin);
  made->most_ = most;
  made->granule_ = granule;
  return made;
}

GrowingMemory::~GrowingMemory() {
  if (data_ == nullptr) return;
  const Driver& driver = *Driver::get();
  const OnDevice on(number_);
  cudaDeviceSynchronize();
  if (size_ > 0) driver.unmap(address(data_), size_);
  driver.free(address(data_), most_);
}

Status GrowingMemory::grow(std::uint64_t bytes) {
  if (bytes <= size_) return {};
  if (bytes > most_) {
    return error(StatusCode::kNoSpace, bytes, " bytes of a GPU that has ", most_);
  }
  const Driver& driver = *Driver::get();
  const std::uint64_t more = (bytes - size_ + granule_ - 1) / granule_ * granule_;
  const CUmemAllocationProp properties = memory_of(device_);
  CUmemGenericAllocationHandle memory = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      check_driver(driver.create(&memory, more, &properties, 0), "taking device memory"));
  const CUdeviceptr at = address(data_ + size_);
  const CUresult mapped = driver.map(at, more, 0, memory, 0);
  driver.release(memory);  // the mapping keeps the memory
  DRIFTLESS_RETURN_IF_ERROR(check_driver(mapped, "giving device memory an address"));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult open = driver.access(at, more, &access, 1);
  if (open != CUDA_SUCCESS) driver.unmap(at, more);
  DRIFTLESS_RETURN_IF_ERROR(check_driver(open, "opening device memory"));
  size_ += more;
  return {};
}

Result<DeviceBuffer> DeviceBuffer::make(std::uint64_t bytes, MemoryKind kind) {
  const bool device = kind == MemoryKind::kDevice;
  const std::uint64_t size = std::max<std::uint64_t>(bytes, 1);
  void* memory = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(device ? cudaMalloc(&memory, size) : cudaMallocHost(&memory, size),
            device ? "taking device memory" : "taking pinned memory")
          .with_context(
              concat(bytes, device ? " bytes on the GPU" : " bytes of the host, pinned")));
  DeviceBuffer buffer;
  buffer.memory_ = device ? owned(memory, [](void* made) { cudaFree(made); })
                          : owned(memory, [](void* made) { cudaFreeHost(made); });
  buffer.size_ = bytes;
  buffer.kind_ = kind;
  return buffer;
}

Status DeviceBuffer::reserve(std::uint64_t bytes, MemoryKind kind) {
  if (size_ >= bytes && memory_ && kind_ == kind) return {};
  if (kind_ != kind) *this = DeviceBuffer();
  return kind == MemoryKind::kDevice ? grow_device(bytes) : grow_pinned(bytes);
}

Status DeviceBuffer::grow_device(std::uint64_t bytes) {
  if (growing_ == nullptr) {
    *this = DeviceBuffer();  // both at once might not fit
    growing_ = GrowingMemory::make();
  }
  if (growing_ == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(*this, make(bytes));
    return {};
  }
  DRIFTLESS_RETURN_IF_ERROR(growing_->grow(std::max<std::uint64_t>(bytes, 1))
                                .with_context(concat(bytes, " bytes on the GPU")));
  memory_ = {growing_, growing_->data()};
  size_ = growing_->size();
  return {};
}

Status DeviceBuffer::grow_pinned(std::uint64_t bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(DeviceBuffer larger,
                             make(std::max(bytes, size() + size() / 2), MemoryKind::kHost));
  larger.kept_.swap(kept_);
  if (memory_ && size_ <= kKept) larger.kept_.push_back(std::move(*this));
  *this = std::move(larger);
  return {};
}

Result<DeviceStream> DeviceStream::make() {
  int least = 0, greatest = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  cudaStream_t made = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, least), "making a stream"));
  DeviceStream stream;
  stream.stream_ = handle(made, [](void* native) { cudaStreamDestroy(native_stream(native)); });
  return stream;
}

DeviceStream DeviceStream::borrowed(cuda::Stream stream) {
  DeviceStream borrowed;
  borrowed.stream_.reset(stream);
  return borrowed;
}

Status DeviceStream::copy(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native_stream(get())),
               "copying");
}

Status DeviceStream::clear(void* to, std::uint64_t bytes) const {
  if (bytes == 0) return {};
  return check(cudaMemsetAsync(to, 0, bytes, native_stream(get())), "clearing");
}

Status DeviceStream::wait() const {
  return check(cudaStreamSynchronize(native_stream(get())), "waiting for the GPU");
}

Result<DeviceEvent> DeviceEvent::make() {
  cudaEvent_t made = nullptr;
  DRIFTLESS_RETURN_IF_ERROR(
      check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "making an event"));
  DeviceEvent event;
  event.event_ = handle(made, [](void* native) { cudaEventDestroy(native_event(native)); });
  return event;
}

Status DeviceEvent::record(const DeviceStream& stream) const {
  return check(cudaEventRecord(native_event(event_.get()), native_stream(stream.get())),
               "recording an event");
}
Status DeviceEvent::hold(const DeviceStream& stream) const {
  return check(cudaStreamWaitEvent(native_stream(stream.get()), native_event(event_.get()), 0),
               "waiting for an event");
}
Status DeviceEvent::wait() const {
  return check(cudaEventSynchronize(native_event(event_.get())), "waiting for the GPU");
}

Result<std::byte*> DeviceArena::take(std::uint64_t bytes) {
  bytes = device_aligned(bytes);
  if (foreseen_.data() != nullptr && foreseen_.size() - foreseen_used_ >= bytes) {
    return foreseen_.data() + std::exchange(foreseen_used_, foreseen_used_ + bytes);
  }
  while (block_ < blocks_.size() && blocks_[block_].size() - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    DRIFTLESS_ASSIGN_OR_RETURN(DeviceBuffer block,
                               DeviceBuffer::make(std::max(bytes, kBlockBytes), kind_));
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  std::byte* const piece = blocks_[block_].data() + used_;
  used_ += bytes;
  return piece;
}

void DeviceArena::reset() {
  if (!blocks_.empty()) blocks_.resize(std::min(blocks_.size(), block_ + 1));
  block_ = 0;
  used_ = foreseen_used_ = 0;
}

Status DeviceArena::foresee(std::uint64_t bytes) {
  return foreseen_.reserve(std::max<std::uint64_t>(1, bytes), kind_);
}

std::uint64_t DeviceArena::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const DeviceBuffer& block : blocks_) bytes += block.size();
  return bytes;
}

Result<Uploader> Uploader::make() {
  Uploader uploader;
  for (Slot& slot : uploader.slots_) {
    DRIFTLESS_ASSIGN_OR_RETURN(slot.buffer, DeviceBuffer::make(kSlotBytes, MemoryKind::kHost));
    DRIFTLESS_ASSIGN_OR_RETURN(slot.travelled, DeviceEvent::make());
  }
  return uploader;
}

std::uint64_t Uploader::pinned_bytes() const {
  std::uint64_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.buffer.size();
  return sum;
}

Status Uploader::copy_piece(const Stretch& piece, unsigned lane, const DeviceStream& stream) {
  const Slot& slot = next(lane);
  DRIFTLESS_RETURN_IF_ERROR(slot.travelled.wait());
  std::memcpy(slot.buffer.data(), piece.from.data(), piece.from.size());
  DRIFTLESS_RETURN_IF_ERROR(stream.copy(piece.to_dev, slot.buffer.data(), piece.from.size()));
  return slot.travelled.record(stream);
}

Status Uploader::copy(std::span<const Stretch> stretches, const DeviceStream& stream) {
  std::vector<Stretch> pieces;
  for (Stretch rest : stretches) {
    while (!rest.from.empty()) {
      const auto some = rest.from.first(std::min<std::uint64_t>(rest.from.size(), kSlotBytes));
      pieces.push_back({rest.to_dev, some});
      rest = {rest.to_dev + some.size(), rest.from.subspan(some.size())};
    }
  }
  int device = 0;
  DRIFTLESS_RETURN_IF_ERROR(check(cudaGetDevice(&device), "asking for the GPU"));
  // A few small pieces are copied faster than threads start.
  const unsigned lanes = pieces.size() > 2 ? std::min(kLanes, default_threads()) : 1;
  return parallel_for(pieces.size(), lanes, [&](std::size_t i, unsigned lane) -> Status {
    const OnDevice on(device);  // a new thread has no device
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return copy_piece(pieces[i], lane, stream);
  });
}

// While one slot is emptied, the next one is being filled.
Status Uploader::read(std::span<std::byte> to, const std::byte* from_dev,
                      const DeviceStream& stream) {
  std::span<std::byte> waiting;  // will get the data of `last`
  Slot* last = nullptr;
  const auto empty_last = [&]() -> Status {
    if (last == nullptr) return {};
    DRIFTLESS_RETURN_IF_ERROR(last->travelled.wait());
    std::memcpy(waiting.data(), last->buffer.data(), waiting.size());
    return {};
  };
  while (!to.empty()) {
    const auto piece = to.first(std::min<std::uint64_t>(to.size(), kSlotBytes));
    Slot& slot = next(0);
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.wait());
    DRIFTLESS_RETURN_IF_ERROR(stream.copy(slot.buffer.data(), from_dev, piece.size()));
    DRIFTLESS_RETURN_IF_ERROR(slot.travelled.record(stream));
    DRIFTLESS_RETURN_IF_ERROR(empty_last());
    last = &slot;
    waiting = piece;
    from_dev += piece.size();
    to = to.subspan(piece.size());
  }
  return empty_last();
}

Result<DeviceWorkspace> DeviceWorkspace::make(const cuda::WorkspaceSize& size) {
  DeviceWorkspace made;
  DRIFTLESS_ASSIGN_OR_RETURN(made.dev, DeviceBuffer::make(size.dev_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(made.host, DeviceBuffer::make(size.host_bytes, MemoryKind::kHost));
  return made;
}

}  // namespace driftless
