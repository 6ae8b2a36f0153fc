// SPDX-License-Identifier: Apache-2.0
// Descriptor: a file descriptor or socket that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace driftless {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  void reset() { const Descriptor closed(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

}  // namespace driftless
