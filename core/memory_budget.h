// SPDX-License-Identifier: Apache-2.0
// MemoryBudget: a cap on the bytes that several threads hold at the same time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace driftless {

// Makes a thread wait while it would exceed the cap, until others release bytes. Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t cap_bytes) : cap_bytes_(cap_bytes) {}

  // Holds bytes of the budget until it is destroyed.
  class Hold {
   public:
    // Waits until the bytes fit. A request above the cap waits until nothing else is held. A thread
    // that holds bytes must not make a second Hold of the same budget: it could wait for itself.
    Hold(MemoryBudget& budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {
      std::unique_lock lock(budget_.mutex_);
      budget_.changed_.wait(lock, [&] {
        return budget_.taken_bytes_ == 0 || (budget_.taken_bytes_ < budget_.cap_bytes_ &&
                                             bytes_ <= budget_.cap_bytes_ - budget_.taken_bytes_);
      });
      budget_.taken_bytes_ += bytes_;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      const std::scoped_lock lock(budget_.mutex_);
      budget_.taken_bytes_ -= bytes_;
      budget_.changed_.notify_all();
    }

   private:
    MemoryBudget& budget_;
    std::uint64_t bytes_;
  };

 private:
  const std::uint64_t cap_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace driftless
