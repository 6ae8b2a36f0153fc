// SPDX-License-Identifier: Apache-2.0
// ProgressThread: lets MPI work in a publisher that computes. Over networks without RDMA a get of a
// receiver waits until its target enters MPI; this thread enters it again and again. Needs
// MPI_THREAD_MULTIPLE. Ends with its owner.
#pragma once

#include <atomic>
#include <thread>

#include "collectives/mpi_rma/pulse.h"

namespace driftless::mpi_rma {

class ProgressThread {
 public:
  // Works without a pause while there is something to do, else every 50 us at first, every 1 ms
  // after a while. Nobody sends on `quiet`.
  explicit ProgressThread(MPI_Comm quiet);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void run();
  Pulse pulse_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace driftless::mpi_rma
