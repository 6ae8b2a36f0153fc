// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/progress_thread.h"

#include <algorithm>
#include <chrono>

#include "collectives/mpi_rma/mpi_status.h"
#include "core/deadline.h"

namespace driftless::mpi_rma {
namespace {

using std::chrono::microseconds;

// MPI does not tell whether it had something to do; the time it took does. A call that found
// nothing takes one or two microseconds.
constexpr microseconds kThreadWorked{5};
constexpr microseconds kThreadSpin{200};  // after it had something to do
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
  MPI_Wait(&never_, MPI_STATUS_IGNORE);  // of a receive that was cancelled: at once
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
