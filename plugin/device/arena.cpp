// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/arena.h"

#include <algorithm>

namespace driftless {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kAlignment = 256;

}  // namespace

Result<std::byte*> DeviceArena::take(std::uint64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && blocks_[block_].size() - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const std::uint64_t size = std::max(bytes, kBlockBytes);
    DRIFTLESS_ASSIGN_OR_RETURN(DeviceBuffer block, kind_ == MemoryKind::kDevice
                                                       ? DeviceBuffer::device(size)
                                                       : DeviceBuffer::pinned(size));
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  std::byte* const piece = blocks_[block_].data() + used_;
  used_ += bytes;
  return piece;
}

void DeviceArena::reset() {
  if (!blocks_.empty()) blocks_.resize(std::min(blocks_.size(), block_ + 1));
  block_ = 0;
  used_ = 0;
}

std::uint64_t DeviceArena::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const DeviceBuffer& block : blocks_) bytes += block.size();
  return bytes;
}

}  // namespace driftless
