// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/environment.h"

namespace driftless {
namespace {

template <typename Work>
Status guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& exception) {
    return error(StatusCode::kInternal, "unexpected exception: ", exception.what());
  } catch (...) {
    return error(StatusCode::kInternal, "unexpected exception of an unknown type");
  }
}

// Runs body(worker) on `threads` threads; the caller's is worker 0. If the system refuses some of
// them, the others do the work.
void run_workers(unsigned threads, const std::function<void(unsigned)>& body) {
  std::vector<std::thread> others;
  if (!environment().has_threads()) threads = 1;
  others.reserve(threads);
  for (unsigned worker = 1; worker < threads; ++worker) {
    try {
      others.emplace_back(body, worker);
    } catch (const std::system_error&) {
      break;
    }
  }
  body(0);
  for (std::thread& thread : others) thread.join();
}

// The failure of the lowest task, shared by the workers of one call.
class FirstFailure {
 public:
  void record(std::size_t task, Status status) {
    if (status.ok() || task >= task_) return;
    task_ = task;
    status_ = std::move(status);
  }
  [[nodiscard]] bool any() const { return !status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  std::size_t task_ = std::numeric_limits<std::size_t>::max();
  Status status_;
};

class Pipeline {
 public:
  using Work = std::function<Status(std::size_t, std::size_t)>;
  Pipeline(std::size_t tasks, std::size_t slots, const Work& produce, const Work& consume)
      : tasks_(tasks), ready_(slots, false), produce_(produce), consume_(consume) {}

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [this] { return over() || next_task_ < consumed_ + ready_.size(); });
      if (over()) return;
      const std::size_t task = next_task_++;
      const std::size_t slot = task % ready_.size();
      if (over()) room_.notify_all();  // nobody need wait for room any more
      lock.unlock();
      Status status = guarded([&] { return produce_(task, slot); });
      lock.lock();
      record(task, std::move(status));
      ready_[slot] = true;
      drain(lock);
    }
  }

  [[nodiscard]] const Status& status() const { return failure_.status(); }

 private:
  // The thread that finishes the next task in order consumes it and all ready tasks after it.
  void drain(std::unique_lock<std::mutex>& lock) {
    if (consuming_) return;
    consuming_ = true;
    while (!failure_.any() && consumed_ < tasks_ && ready_[consumed_ % ready_.size()]) {
      const std::size_t task = consumed_;
      const std::size_t slot = task % ready_.size();
      lock.unlock();
      Status status = guarded([&] { return consume_(task, slot); });
      lock.lock();
      record(task, std::move(status));
      ready_[slot] = false;
      ++consumed_;
      room_.notify_one();  // room for one more
    }
    consuming_ = false;
  }

  [[nodiscard]] bool over() const { return failure_.any() || next_task_ == tasks_; }

  void record(std::size_t task, Status status) {
    if (status.ok()) return;
    failure_.record(task, std::move(status));
    room_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable room_;
  const std::size_t tasks_;
  std::size_t next_task_ = 0;
  std::size_t consumed_ = 0;
  bool consuming_ = false;
  std::vector<bool> ready_;
  FirstFailure failure_;
  const Work& produce_;
  const Work& consume_;
};

}  // namespace

unsigned default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

Status parallel_for(std::size_t tasks, unsigned threads,
                    const std::function<Status(std::size_t, unsigned)>& work) {
  std::mutex mutex;
  std::size_t next = 0;
  FirstFailure failure;
  const auto count = static_cast<unsigned>(std::min<std::size_t>(std::max(1U, threads), tasks));
  run_workers(count, [&](unsigned worker) {
    while (true) {
      std::size_t task = 0;
      {
        const std::scoped_lock lock(mutex);
        if (failure.any() || next == tasks) return;
        task = next++;
      }
      Status status = guarded([&] { return work(task, worker); });
      if (status.ok()) continue;
      const std::scoped_lock lock(mutex);
      failure.record(task, std::move(status));
    }
  });
  return failure.status();
}

Status ordered_pipeline(std::size_t tasks, unsigned threads, std::size_t slots,
                        const std::function<Status(std::size_t, std::size_t)>& produce,
                        const std::function<Status(std::size_t, std::size_t)>& consume) {
  if (slots == 0) return error(StatusCode::kInternal, "ordered_pipeline() without slots");
  Pipeline pipeline(tasks, slots, produce, consume);
  const auto count = static_cast<unsigned>(std::min<std::size_t>(std::max(1U, threads), tasks));
  if (count > 0) run_workers(count, [&](unsigned) { pipeline.work(); });
  return pipeline.status();
}

}  // namespace driftless
