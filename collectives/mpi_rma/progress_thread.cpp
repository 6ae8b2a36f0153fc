#include "collectives/mpi_rma/progress_thread.h"

#include <chrono>

#include "core/deadline.h"

namespace driftless::mpi_rma {
namespace {

using std::chrono::microseconds;

// MPI does not tell whether it had something to do; the time it took does. A call that found
// nothing takes a few microseconds.
constexpr microseconds kWorked{20};
constexpr microseconds kShortest{50};
constexpr microseconds kLongest{1'000};

}  // namespace

ProgressThread::ProgressThread(std::function<void()> probe)
    : thread_([this, probe = std::move(probe)] { run(probe); }) {}

ProgressThread::~ProgressThread() {
  stop_ = true;
  thread_.join();
}

void ProgressThread::run(const std::function<void()>& probe) {
  microseconds pause = kShortest;
  while (!stop_) {
    const auto begin = Deadline::Clock::now();
    probe();
    if (Deadline::Clock::now() - begin > kWorked) {
      pause = kShortest;
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + pause / 8, kLongest);
  }
}

}  // namespace driftless::mpi_rma
