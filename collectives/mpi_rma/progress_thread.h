// ProgressThread: lets MPI work in a publisher that computes. Over networks without RDMA a get of a
// receiver waits until its target enters MPI; this thread enters it again and again. Needs
// MPI_THREAD_MULTIPLE. Ends with its owner.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace driftless::mpi_rma {

class ProgressThread {
 public:
  // `probe` enters MPI once. Without a pause while that moves data, else every 50 us at first,
  // every 1 ms after a while.
  explicit ProgressThread(std::function<void()> probe);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void run(const std::function<void()>& probe);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace driftless::mpi_rma
