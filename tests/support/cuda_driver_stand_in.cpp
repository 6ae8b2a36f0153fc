// SPDX-License-Identifier: Apache-2.0
// What KeepThreadGpu (core/thread_gpu.h) asks of CUDA's driver, for machines without one: a context
// for each thread. Before cu_init_stand_in() it answers as a driver that nobody has initialized.
namespace {
thread_local void* current = nullptr;
bool initialized = false;
constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void cu_init_stand_in() { initialized = true; }
__attribute__((visibility("default"))) int cuCtxGetCurrent(void** context) {
  if (!initialized) return kNotInitialized;
  *context = current;
  return 0;
}
__attribute__((visibility("default"))) int cuCtxSetCurrent(void* context) {
  if (!initialized) return kNotInitialized;
  current = context;
  return 0;
}
}
