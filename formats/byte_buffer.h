// SPDX-License-Identifier: Apache-2.0
// A byte buffer that grows at its end. Unlike std::vector it does not zero bytes that the caller
// overwrites at once, it grows in place if the allocator can, and it reports a lack of memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>

namespace driftless {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  ByteBuffer(const ByteBuffer&) = delete;
  ByteBuffer& operator=(const ByteBuffer&) = delete;
  ByteBuffer(ByteBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ByteBuffer& operator=(ByteBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~ByteBuffer() { std::free(data_); }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Adds `count` bytes, which the caller fills. Without memory returns null and changes nothing.
  // Invalidates pointers into the buffer.
  [[nodiscard]] std::byte* extend(std::size_t count) {
    if (!reserve(count)) return nullptr;
    std::byte* const begin = data_ + size_;
    size_ += count;
    return begin;
  }
  // Allocates memory for the next `count` bytes; false if there is none.
  [[nodiscard]] bool reserve(std::size_t count) {
    return (data_ != nullptr && count <= capacity_ - size_) || grow(count);
  }
  // Drops the bytes past `size` and keeps the memory.
  void shrink(std::size_t size) { size_ = std::min(size_, size); }

 private:
  static constexpr std::size_t kFirstBytes = 4096;

  [[nodiscard]] bool grow(std::size_t count) {
    const std::size_t wanted = std::max({kFirstBytes, size_ + count, capacity_ + capacity_ / 2});
    if (wanted < count) return false;
    void* const moved = std::realloc(data_, wanted);
    if (moved == nullptr) return false;
    data_ = static_cast<std::byte*>(moved);
    capacity_ = wanted;
    return true;
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace driftless
