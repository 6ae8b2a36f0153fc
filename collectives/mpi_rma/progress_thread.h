// SPDX-License-Identifier: Apache-2.0
// ProgressPoll lets MPI make progress once; ProgressThread does so repeatedly in a publisher that
// computes. Over networks without RDMA a receiver's get waits until its target enters MPI, so this
// thread enters MPI again and again. Needs MPI_THREAD_MULTIPLE. Ends with its owner.
#pragma once

#include <mpi.h>

#include <atomic>
#include <thread>

namespace driftless::mpi_rma {

// MPI_Test of a request that never completes enters MPI's progress engine every time, while
// MPI_Iprobe may only look at messages (Open MPI over UCX: in 99 of 100 calls). One thread at a
// time; several may share a communicator without messages.
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
  // Polls without a pause while there is work, otherwise every 50 us at first and every 1 ms later.
  // No rank may send on `quiet`.
  explicit ProgressThread(MPI_Comm quiet);
  ~ProgressThread();

 private:
  void run();
  ProgressPoll progress_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace driftless::mpi_rma
