// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/progress_thread.h"

#include <algorithm>
#include <chrono>

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

ProgressThread::ProgressThread(MPI_Comm quiet) : pulse_(quiet), thread_([this] { run(); }) {}

ProgressThread::~ProgressThread() {
  stop_ = true;
  thread_.join();
}

void ProgressThread::run() {
  microseconds pause = kShortest;
  auto worked = Deadline::Clock::now();
  while (!stop_) {
    const auto begin = Deadline::Clock::now();
    pulse_.beat();
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
