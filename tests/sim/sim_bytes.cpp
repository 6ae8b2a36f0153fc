// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace driftless::testing {

SimBytes::~SimBytes() {
  if (shared_ != nullptr) ::munmap(shared_, room_);
  if (file_ >= 0) ::close(file_);
}

void SimBytes::reserve_shared(std::uint64_t bytes) {
  if (bytes <= room_) return;
  constexpr std::uint64_t kPage = 1U << 16U;
  const std::uint64_t room = (bytes + kPage - 1) / kPage * kPage;
  if (file_ < 0) file_ = ::memfd_create("simulated", MFD_CLOEXEC);
  if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(room)) != 0) std::abort();
  if (shared_ != nullptr) ::munmap(shared_, room_);
  void* const made = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (made == MAP_FAILED) std::abort();
  shared_ = static_cast<std::byte*>(made);
  room_ = room;
}

void SimBytes::resize(std::uint64_t size) {
  if (shared_ == nullptr) {
    held_.resize(size);
  } else {
    reserve_shared(size);
    if (size < size_) std::fill(shared_ + size, shared_ + size_, std::byte{0});
  }
  size_ = size;
}

const std::byte* SimBytes::map() {
  if (shared_ == nullptr) {
    reserve_shared(size_);
    std::ranges::copy(held_, shared_);
    held_ = {};
  }
  void* const made = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_, 0);
  if (made == MAP_FAILED) std::abort();
  return static_cast<const std::byte*>(made);
}

}  // namespace driftless::testing
