// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_buffer.h"

#include <cstring>
#include <limits>

namespace driftless {
namespace {

constexpr std::uint64_t kSmallBytes = std::uint64_t{1} << 20;

}  // namespace

bool PartBuffer::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_bytes_) return true;
  constexpr std::uint64_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  if (bytes > kMost) return false;
  const std::uint64_t twice = std::min(2 * capacity_bytes_, kMost);
  const std::uint64_t wanted = std::max({bytes, twice, std::uint64_t{4096}});
  std::byte* held = data_.release();  // realloc() takes it over unless it fails
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

bool PartBuffer::resize(std::uint64_t size_bytes) {
  if (!reserve(size_bytes)) return false;
  size_bytes_ = size_bytes;
  return true;
}

PartBuffer PartPool::take(std::optional<std::uint64_t> size_bytes) {
  const std::scoped_lock lock(mutex_);
  const auto fits = [&](const PartBuffer& buffer) {
    const std::uint64_t capacity = buffer.capacity_bytes();
    return !size_bytes ||
           (capacity >= *size_bytes && (capacity <= kSmallBytes || capacity / 2 <= *size_bytes));
  };
  const auto found = std::find_if(spare_.rbegin(), spare_.rend(), fits);
  if (found == spare_.rend()) return {};
  PartBuffer buffer = std::move(*found);
  spare_.erase(std::next(found).base());
  spare_bytes_ -= buffer.capacity_bytes();
  return buffer;
}

std::shared_ptr<const PartBuffer> PartPool::share(PartBuffer buffer) {
  auto held = std::make_unique<PartBuffer>(std::move(buffer));
  const auto give_back = [pool = weak_from_this()](const PartBuffer* shared) {
    const std::unique_ptr<PartBuffer> owned(const_cast<PartBuffer*>(shared));
    if (const std::shared_ptr<PartPool> there = pool.lock()) there->put(std::move(*owned));
  };
  return {held.release(), give_back};
}

void PartPool::put(PartBuffer buffer) {
  buffer.clear();
  const std::scoped_lock lock(mutex_);
  if (buffer.capacity_bytes() > most_bytes_) return;
  while (spare_bytes_ + buffer.capacity_bytes() > most_bytes_) {
    spare_bytes_ -= spare_.front().capacity_bytes();
    spare_.erase(spare_.begin());
  }
  spare_bytes_ += buffer.capacity_bytes();
  spare_.push_back(std::move(buffer));
}

}  // namespace driftless
