// SPDX-License-Identifier: Apache-2.0
// The GPU that a thread works on is a choice of its owner: what we choose meanwhile is taken back.
//
// By the CUDA driver's own word for it, a context, which may be none. cudaSetDevice() does not do:
// to a thread that has GPU 0 only by default it would make a context there, in the memory of a GPU
// that may be another process's.
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
