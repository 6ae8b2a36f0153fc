// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/growing_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <bit>
#include <optional>
#include <type_traits>

namespace driftless {
namespace {

// The driver's own calls, from the library that the runtime has loaded: nothing is linked with it.
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

  // Nothing where a call is missing.
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

Status check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return {};
  return error(code == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::kNoSpace : StatusCode::kIo, what,
               ": the CUDA driver says ", static_cast<int>(code),
               code == CUDA_ERROR_OUT_OF_MEMORY ? " (out of memory)" : "");
}

}  // namespace

std::unique_ptr<GrowingMemory> GrowingMemory::make() {
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
  std::unique_ptr<GrowingMemory> made(new GrowingMemory);
  made->device_ = device;
  made->data_ = std::bit_cast<std::byte*>(begin);
  made->most_ = most;
  made->granule_ = granule;
  return made;
}

GrowingMemory::~GrowingMemory() {
  if (data_ == nullptr) return;
  const Driver& driver = *Driver::get();
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
      check(driver.create(&memory, more, &properties, 0), "taking device memory"));
  const CUdeviceptr at = address(data_ + size_);
  const CUresult mapped = driver.map(at, more, 0, memory, 0);
  driver.release(memory);  // the mapping keeps it
  DRIFTLESS_RETURN_IF_ERROR(check(mapped, "giving device memory an address"));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult open = driver.access(at, more, &access, 1);
  if (open != CUDA_SUCCESS) driver.unmap(at, more);
  DRIFTLESS_RETURN_IF_ERROR(check(open, "opening device memory"));
  size_ += more;
  return {};
}

}  // namespace driftless
