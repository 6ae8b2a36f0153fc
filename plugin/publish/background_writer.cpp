// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/background_writer.h"

#include <exception>
#include <utility>

#include "core/environment.h"

namespace driftless {
namespace {

// Nothing may leave the thread.
Status guarded(const BackgroundWriter::Work& work) {
  try {
    return work();
  } catch (const std::exception& caught) {
    return error(StatusCode::kNoSpace, "writing a version: ", caught.what());
  }
}

}  // namespace

BackgroundWriter::BackgroundWriter(bool background) {
  if (background && environment().has_threads()) thread_ = std::thread([this] { run(); });
}

BackgroundWriter::~BackgroundWriter() { stop(); }

Status BackgroundWriter::hand_over(Work work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  if (!status_.ok()) return status_;
  if (!thread_.joinable()) {
    status_ = guarded(work);
    return status_;
  }
  work_ = std::move(work);
  changed_.notify_all();
  return {};
}

Status BackgroundWriter::status() {
  const std::scoped_lock lock(mutex_);
  return status_;
}

Status BackgroundWriter::finish() {
  stop();
  return status_;
}

void BackgroundWriter::stop() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return work_ || stopping_; });
    if (!work_) return;
    lock.unlock();
    Status done = guarded(work_);
    lock.lock();
    status_ = std::move(done);
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace driftless
