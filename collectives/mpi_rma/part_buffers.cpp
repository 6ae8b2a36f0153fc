// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/part_buffers.h"

#include <new>
#include <utility>

namespace driftless::mpi_rma {
namespace {

constexpr std::uint64_t kSmall = std::uint64_t{1} << 20;

}  // namespace

PartBuffers::PartBuffers(std::uint64_t idle_bytes) : idle_(std::make_shared<Idle>()) {
  idle_->most = idle_bytes;
}

Result<PartBuffers::Buffer> PartBuffers::take(std::uint64_t size) {
  try {
    auto block = std::make_shared<Block>(reuse(size));
    if (!block->memory) {
      block->memory = std::make_unique_for_overwrite<std::byte[]>(size);
      block->size = size;
    }
    std::byte* data = block->memory.get();
    std::shared_ptr<void> owner(
        data, [idle = idle_, block](void*) { give_back(*idle, std::move(*block)); });
    return Buffer{std::move(owner), {data, size}};
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kNoSpace, "no memory for a part of ", size, " bytes");
  }
}

PartBuffers::Block PartBuffers::reuse(std::uint64_t size) {
  const std::lock_guard lock(idle_->mutex);
  for (auto it = idle_->blocks.rbegin(); it != idle_->blocks.rend(); ++it) {
    if (it->size < size || (it->size > kSmall && it->size / 2 > size)) continue;
    Block block = std::move(*it);
    idle_->blocks.erase(std::next(it).base());
    idle_->bytes -= block.size;
    return block;
  }
  return {};
}

void PartBuffers::give_back(Idle& idle, Block block) try {
  const std::lock_guard lock(idle.mutex);
  if (block.size > idle.most) return;
  // The longest idle make room.
  while (!idle.blocks.empty() && idle.bytes + block.size > idle.most) {
    idle.bytes -= idle.blocks.front().size;
    idle.blocks.erase(idle.blocks.begin());
  }
  const std::uint64_t size = block.size;
  idle.blocks.push_back(std::move(block));
  idle.bytes += size;
} catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not kept, then
}

}  // namespace driftless::mpi_rma
