// PartBuffer: the bytes of a part in memory, growing while it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace driftless {

// realloc() moves large blocks by their pages, where a vector would copy them and fill them with
// zeros first. One thread at a time.
class PartBuffer {
 public:
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_bytes_}; }
  // Bytes before `offset` that were never written are zero. False, and nothing changed, where there
  // is no memory.
  [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  [[nodiscard]] bool reserve(std::uint64_t bytes);

  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t capacity_bytes_ = 0;
};

}  // namespace driftless
