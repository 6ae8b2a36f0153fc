// SPDX-License-Identifier: Apache-2.0
// Restores the calling thread's current GPU: the caller of the library chose it, and our code may
// have selected another one meanwhile.
//
// The current GPU is saved as the driver's context, which may be none. cudaSetDevice() would not
// do: in a thread that has GPU 0 only by default it would create a context there and so take memory
// of a GPU that may belong to another process.
#pragma once

namespace driftless {

// Does nothing in a process that has not loaded the driver. Links nothing of CUDA.
class KeepThreadGpu {
 public:
  KeepThreadGpu();
  KeepThreadGpu(const KeepThreadGpu&) = delete;
  KeepThreadGpu& operator=(const KeepThreadGpu&) = delete;
  ~KeepThreadGpu();

 private:
  void* before_ = nullptr;  // a CUcontext
};

}  // namespace driftless
