// SPDX-License-Identifier: Apache-2.0
// The bytes of a simulated file. They can be mapped: as with a real file, a mapping shows later
// writes, and outlives the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace driftless::testing {

class SimBytes {
 public:
  SimBytes() = default;
  ~SimBytes();
  SimBytes(const SimBytes&) = delete;
  SimBytes& operator=(const SimBytes&) = delete;

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> all() { return {data(), size_}; }
  void resize(std::uint64_t size);  // new bytes are zero
  // A read-only mapping of all bytes, of which there must be some; the caller unmaps it.
  [[nodiscard]] const std::byte* map();

 private:
  [[nodiscard]] std::byte* data() { return shared_ != nullptr ? shared_ : held_.data(); }
  void reserve_shared(std::uint64_t bytes);

  std::uint64_t size_ = 0;
  std::vector<std::byte> held_;  // until the first map()
  int file_ = -1;                // after that, a file in memory
  std::byte* shared_ = nullptr;
  std::uint64_t room_ = 0;
};

}  // namespace driftless::testing
