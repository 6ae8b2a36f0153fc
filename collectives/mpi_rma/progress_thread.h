// SPDX-License-Identifier: Apache-2.0
// ProgressPoll lets MPI work once; ProgressThread does so in a publisher that computes. Over
// networks without RDMA a get of a receiver waits until its target enters MPI; this thread enters
// it again and again. Needs MPI_THREAD_MULTIPLE. Ends with its owner.
#pragma once

#include <mpi.h>

#include <atomic>
#include <thread>

namespace driftless::mpi_rma {

// MPI_Test of a request that never completes enters MPI's engine every time, while MPI_Iprobe may
// look at the messages only (Open MPI over UCX: 99 times of 100). One thread at a time; several may
// share a communicator that nobody sends to.
class ProgressPoll {
 public:
  explicit ProgressPoll(MPI_Comm comm);
  ~ProgressPoll();
  ProgressPoll(const ProgressPoll&) = delete;
  ProgressPoll& operator=(const ProgressPoll&) = delete;
  void poll();

 private:
  char unused_ = 0;
  MPI_Request never_ = MPI_REQUEST_NULL;
};

class ProgressThread {
 public:
  // Works without a pause while there is something to do, else every 50 us at first, every 1 ms
  // after a while. Nobody sends on `quiet`.
  explicit ProgressThread(MPI_Comm quiet);
  ~ProgressThread();

 private:
  void run();
  ProgressPoll progress_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace driftless::mpi_rma
