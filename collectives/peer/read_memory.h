// SPDX-License-Identifier: Apache-2.0
// Memory for reads of parts. It is kept for further reads, up to a limit, because the kernel needs
// as long to create a page as a network to fill it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "core/status.h"

namespace driftless::peer {

class NixlAgent;
class ReadMemory;

// A mapping, registered with NIXL if necessary.
class ReadBlock {
 public:
  explicit ReadBlock(std::span<std::byte> mapping) : mapping_(mapping) {}
  ReadBlock(ReadBlock&& other) noexcept;
  ReadBlock& operator=(ReadBlock&& other) noexcept;
  ~ReadBlock();
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_; }
  [[nodiscard]] Status register_with(NixlAgent& agent);

 private:
  std::span<std::byte> mapping_;
  std::shared_ptr<const void> registration_;
};

// The memory of one read. Further reads reuse it, unless it was spoiled.
class ReadLease {
 public:
  ReadLease(ReadBlock block, std::weak_ptr<ReadMemory> home)
      : block_(std::move(block)), home_(std::move(home)) {}
  ~ReadLease();
  ReadLease(const ReadLease&) = delete;
  ReadLease& operator=(const ReadLease&) = delete;
  // At least the requested number of bytes, at the beginning of a page.
  [[nodiscard]] std::span<std::byte> bytes() const { return block_.bytes(); }
  // Prevents reuse, because an unfinished read may still write into it.
  void spoil() { home_.reset(); }

 private:
  ReadBlock block_;
  std::weak_ptr<ReadMemory> home_;
};

// Thread-safe. Create it with make_shared().
class ReadMemory : public std::enable_shared_from_this<ReadMemory> {
 public:
  // Keeps at most `most` bytes without a lease. `agent`: registers the memory; may be null.
  explicit ReadMemory(std::uint64_t most, std::shared_ptr<NixlAgent> agent = nullptr)
      : most_(most), agent_(std::move(agent)) {}

  // kNoSpace, naming `what`.
  [[nodiscard]] Result<std::shared_ptr<ReadLease>> take(std::uint64_t bytes, std::string_view what);
  // Subtracts bytes that are used otherwise from `most`.
  void set_used(std::uint64_t bytes);

 private:
  friend class ReadLease;
  [[nodiscard]] Result<ReadBlock> take_block(std::uint64_t bytes, std::string_view what);
  void give_back(ReadBlock block);
  void trim();

  const std::uint64_t most_;
  const std::shared_ptr<NixlAgent> agent_;
  std::mutex mutex_;
  std::multimap<std::uint64_t, ReadBlock> spare_;  // by size
  std::uint64_t spare_bytes_ = 0, used_ = 0;
};

}  // namespace driftless::peer
