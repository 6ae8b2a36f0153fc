#include "collectives/loopback/part_buffer.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace driftless {

bool PartBuffer::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_bytes_) return true;
  constexpr std::uint64_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  if (bytes > kMost) return false;
  const std::uint64_t twice = std::min(2 * capacity_bytes_, kMost);
  const std::uint64_t wanted = std::max({bytes, twice, std::uint64_t{4096}});
  std::byte* held = data_.release();  // for realloc() to take over, unless it fails
  auto* grown = static_cast<std::byte*>(std::realloc(held, wanted));
  data_.reset(grown != nullptr ? grown : held);
  if (grown == nullptr) return false;
  capacity_bytes_ = wanted;
  return true;
}

bool PartBuffer::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  if (bytes.size() > std::numeric_limits<std::uint64_t>::max() - offset) return false;
  const std::uint64_t end = offset + bytes.size();
  if (!reserve(end)) return false;
  if (offset > size_bytes_) std::memset(data_.get() + size_bytes_, 0, offset - size_bytes_);
  std::memcpy(data_.get() + offset, bytes.data(), bytes.size());
  size_bytes_ = std::max(size_bytes_, end);
  return true;
}

}  // namespace driftless
