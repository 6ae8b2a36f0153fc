// SPDX-License-Identifier: Apache-2.0
#include "core/thread_gpu.h"

#include <dlfcn.h>

#include <atomic>

namespace driftless {
namespace {

// As cuda.h declares them: a CUresult is an int, a CUcontext a pointer.
struct Driver {
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
};

// Null until somebody has loaded the driver, which is never unloaded.
const Driver* driver() {
  static std::atomic<const Driver*> known = nullptr;
  static Driver found;
  if (const Driver* const there = known.load(std::memory_order_acquire)) return there;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  static const bool complete = [library] {
    found.get_current =
        reinterpret_cast<decltype(found.get_current)>(dlsym(library, "cuCtxGetCurrent"));
    found.set_current =
        reinterpret_cast<decltype(found.set_current)>(dlsym(library, "cuCtxSetCurrent"));
    return found.get_current != nullptr && found.set_current != nullptr;
  }();
  if (!complete) return nullptr;
  known.store(&found, std::memory_order_release);
  return &found;
}

// Null if there is none, or if nobody has called cuInit().
void* current_context(const Driver& driver) {
  void* context = nullptr;
  return driver.get_current(&context) == 0 ? context : nullptr;
}

}  // namespace

KeepThreadGpu::KeepThreadGpu() {
  const Driver* const there = driver();
  if (there != nullptr) before_ = current_context(*there);
}

KeepThreadGpu::~KeepThreadGpu() {
  const Driver* const there = driver();
  if (there != nullptr && current_context(*there) != before_) there->set_current(before_);
}

}  // namespace driftless
