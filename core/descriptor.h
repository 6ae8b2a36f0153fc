// SPDX-License-Identifier: Apache-2.0
// Descriptor: a file descriptor or socket that closes itself; and whole reads and writes of files.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "core/status.h"

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

// Write or read all of `bytes`, with as many calls as needed. kCorrupt if a read meets the end.
[[nodiscard]] Status write_at(const Descriptor& file, std::uint64_t offset,
                              std::span<const std::byte> bytes, std::string_view what);
[[nodiscard]] Status read_at(const Descriptor& file, std::uint64_t offset,
                             std::span<std::byte> bytes, std::string_view what);

}  // namespace driftless
