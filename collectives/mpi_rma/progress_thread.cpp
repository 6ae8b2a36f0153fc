// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/progress_thread.h"

#include <algorithm>
#include <chrono>

#include "collectives/mpi_rma/mpi_status.h"
#include "core/deadline.h"

namespace driftless::mpi_rma {
namespace {

using std::chrono::microseconds;

// MPI does not report whether it had work; the duration shows it. A call without work takes one or
// two microseconds.
constexpr microseconds kThreadWorked{5};
constexpr microseconds kThreadSpin{200};  // after the last work
constexpr microseconds kShortest{50};
constexpr microseconds kLongest{1'000};

}  // namespace

ProgressPoll::ProgressPoll(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  if (MPI_Irecv(&unused_, 1, MPI_BYTE, rank, 0, comm, &never_) != MPI_SUCCESS) {
    never_ = MPI_REQUEST_NULL;
  }
}

ProgressPoll::~ProgressPoll() {
  if (never_ == MPI_REQUEST_NULL || !mpi_runs()) return;
  MPI_Cancel(&never_);
  MPI_Wait(&never_, MPI_STATUS_IGNORE);  // ends at once: the receive was cancelled
}

void ProgressPoll::poll() {
  int done = 0;
  MPI_Test(&never_, &done, MPI_STATUS_IGNORE);
}

ProgressThread::ProgressThread(MPI_Comm quiet) : progress_(quiet), thread_([this] { run(); }) {}

ProgressThread::~ProgressThread() {
  stop_ = true;
  thread_.join();
}

void ProgressThread::run() {
  microseconds pause = kShortest;
  auto worked = Deadline::Clock::now();
  while (!stop_) {
    const auto begin = Deadline::Clock::now();
    progress_.poll();
    const auto end = Deadline::Clock::now();
    if (end - begin > kThreadWorked) {
      worked = end;
      pause = kShortest;
    } else if (end - worked < kThreadSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause + pause / 8, kLongest);
    }
  }
}

}  // namespace driftless::mpi_rma
