// SPDX-License-Identifier: Apache-2.0
// MemoryBudget: a cap on what several threads hold at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace driftless {

// Makes threads wait that would take more memory than a cap, until others are done. Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t cap_bytes) : cap_bytes_(cap_bytes) {}

  // The bytes are taken as long as it lives.
  class Hold {
   public:
    // Waits until they fit. One that is larger than the cap goes alone, so that nobody waits for
    // ever: whoever holds some must not wait at the same budget again.
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
