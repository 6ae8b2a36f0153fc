// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/read_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "collectives/peer/nixl_agent.h"

namespace driftless::peer {
namespace {

constexpr std::uint64_t kBlockUnit = std::uint64_t{64} << 10;  // a multiple of every page size

}  // namespace

ReadBlock::ReadBlock(ReadBlock&& other) noexcept
    : mapping_(std::exchange(other.mapping_, {})), registration_(std::move(other.registration_)) {}

ReadBlock& ReadBlock::operator=(ReadBlock&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(registration_, other.registration_);
  return *this;
}

ReadBlock::~ReadBlock() {
  registration_.reset();
  if (!mapping_.empty()) ::munmap(mapping_.data(), mapping_.size());
}

Status ReadBlock::register_with(NixlAgent& agent) {
  DRIFTLESS_ASSIGN_OR_RETURN(registration_, agent.add(mapping_));
  return {};
}

ReadLease::~ReadLease() {
  if (const std::shared_ptr<ReadMemory> here = home_.lock()) here->give_back(std::move(block_));
}

Result<std::shared_ptr<ReadLease>> ReadMemory::take(std::uint64_t bytes, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(ReadBlock block, take_block(bytes, what));
  return std::make_shared<ReadLease>(std::move(block), weak_from_this());
}

void ReadMemory::set_used(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  used_ = bytes;
  trim();
}

Result<ReadBlock> ReadMemory::take_block(std::uint64_t bytes, std::string_view what) {
  const std::uint64_t size =
      (std::max(bytes, kBlockUnit) + kBlockUnit - 1) / kBlockUnit * kBlockUnit;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = spare_.lower_bound(size);
    if (found != spare_.end() && found->first / 2 <= size) {
      ReadBlock block = std::move(found->second);
      spare_bytes_ -= found->first;
      spare_.erase(found);
      return block;
    }
  }
  const auto no_memory = [&](std::string_view why) {
    return error(StatusCode::kNoSpace, what, ": no memory for ", bytes, " bytes: ", why);
  };
  if (size < bytes) return no_memory("it is past 64 bits");
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return no_memory(std::strerror(errno));
  ReadBlock block({static_cast<std::byte*>(at), size});
  if (agent_ != nullptr) DRIFTLESS_RETURN_IF_ERROR(block.register_with(*agent_));
  return block;
}

void ReadMemory::give_back(ReadBlock block) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t size = block.bytes().size();
  spare_bytes_ += size;
  spare_.emplace(size, std::move(block));
  trim();
}

// Frees the smallest blocks first: a larger one also serves reads of half its size.
void ReadMemory::trim() {
  while (!spare_.empty() && spare_bytes_ + used_ > most_) {
    spare_bytes_ -= spare_.begin()->first;
    spare_.erase(spare_.begin());
  }
}

}  // namespace driftless::peer
