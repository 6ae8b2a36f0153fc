// SPDX-License-Identifier: Apache-2.0
// A stand-in for CUDA's driver, for machines without one. KeepThreadGpu (core/thread_gpu.h) asks it
// for the context of each thread; before cu_init_stand_in() it replies as a driver that nobody has
// initialized. For `driftless doctor` it reports two GPUs, which variables of the environment
// describe.
#include <cstdlib>
#include <cstring>

namespace {
thread_local void* current = nullptr;
bool initialized = false;
constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
constexpr int kInvalidValue = 1;

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? otherwise : std::atoi(text);
}
}  // namespace

#define DRIFTLESS_OFFERED extern "C" __attribute__((visibility("default")))

DRIFTLESS_OFFERED void cu_init_stand_in() { initialized = true; }
DRIFTLESS_OFFERED int cuCtxGetCurrent(void** context) {
  if (!initialized) return kNotInitialized;
  *context = current;
  return 0;
}
DRIFTLESS_OFFERED int cuCtxSetCurrent(void* context) {
  if (!initialized) return kNotInitialized;
  current = context;
  return 0;
}

DRIFTLESS_OFFERED int cuInit(unsigned) {
  if (number("CUDA_STAND_IN_CRASH", 0) != 0) std::abort();
  return number("CUDA_STAND_IN_INIT", 0);
}
DRIFTLESS_OFFERED int cuDriverGetVersion(int* version) {
  *version = number("CUDA_STAND_IN_VERSION", 13000);
  return *version == 0 ? number("CUDA_STAND_IN_INIT", kInvalidValue) : 0;
}
DRIFTLESS_OFFERED int cuGetErrorName(int code, const char** text) {
  if (code != 100) return kInvalidValue;
  *text = "CUDA_ERROR_NO_DEVICE";
  return 0;
}
DRIFTLESS_OFFERED int cuDeviceGetCount(int* count) {
  *count = number("CUDA_STAND_IN_COUNT", 2);
  return 0;
}
DRIFTLESS_OFFERED int cuDeviceGet(int* device, int place) {
  *device = place;
  return number("CUDA_STAND_IN_DEVICE", 0);
}
DRIFTLESS_OFFERED int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Stand-in", static_cast<std::size_t>(size));
  return 0;
}
DRIFTLESS_OFFERED int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{80} << 30;
  return 0;
}
DRIFTLESS_OFFERED int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = number("CUDA_STAND_IN_CAPABILITY", 90);
  if (attribute != 75 && attribute != 76) return kInvalidValue;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
DRIFTLESS_OFFERED int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = number("CUDA_STAND_IN_PEERS", 0);
  return 0;
}
