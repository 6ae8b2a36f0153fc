// ByteGate: holds back who would take more memory than a cap, until others are done. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace driftless {

class ByteGate {
 public:
  explicit ByteGate(std::uint64_t cap_bytes) : cap_bytes_(cap_bytes) {}

  // As long as it lives the bytes are taken.
  class Pass {
   public:
    // Waits until they fit. One that is larger than the cap goes alone, so that nobody waits for
    // ever: who passed must not wait at the same gate again.
    Pass(ByteGate& gate, std::uint64_t bytes) : gate_(gate), bytes_(bytes) {
      std::unique_lock lock(gate_.mutex_);
      gate_.changed_.wait(lock, [&] {
        return gate_.taken_bytes_ == 0 || (gate_.taken_bytes_ < gate_.cap_bytes_ &&
                                           bytes_ <= gate_.cap_bytes_ - gate_.taken_bytes_);
      });
      gate_.taken_bytes_ += bytes_;
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      const std::scoped_lock lock(gate_.mutex_);
      gate_.taken_bytes_ -= bytes_;
      gate_.changed_.notify_all();
    }

   private:
    ByteGate& gate_;
    std::uint64_t bytes_;
  };

 private:
  const std::uint64_t cap_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace driftless
