// SPDX-License-Identifier: Apache-2.0
// The parts of a trainer rank, in memory that other processes of the host can map, and the chunks
// of parts that a receiver keeps.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "collectives/open_part.h"
#include "collectives/peer/message.h"
#include "core/descriptor.h"

namespace driftless::peer {

// Memory with a descriptor. It never shrinks, so readers that have mapped it can always read it.
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Grows to `bytes` and keeps the content. kNoSpace.
  [[nodiscard]] Status reserve(std::uint64_t bytes);
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] const Descriptor& descriptor() const { return file_; }

  // Whether other hosts read it by address. The maker of the exposure then owns the mapping, and
  // unmaps it; this segment does not.
  [[nodiscard]] bool exposed() const { return exposure_ != nullptr; }
  void set_exposure(std::shared_ptr<const void> exposure) const { exposure_ = std::move(exposure); }

 private:
  Descriptor file_;
  std::byte* data_ = nullptr;
  std::uint64_t capacity_ = 0;
  mutable std::shared_ptr<const void> exposure_;
};

// The chunks of a part that a receiver has so far. Thread-safe.
class ChunkSet {
 public:
  explicit ChunkSet(std::uint64_t part_bytes) : has_(chunks_in(part_bytes)) {}
  // Adds a chunk whose bytes are there and no longer change.
  void add(std::uint64_t chunk);
  [[nodiscard]] bool has(std::uint64_t chunk) const;
  // Whether it has every byte of a range within the part.
  [[nodiscard]] bool covers(const ByteRange& range) const;

 private:
  mutable std::mutex mutex_;
  std::vector<bool> has_;
};

// A finished part, or chunks of one. Its bytes no longer change.
struct StoredPart {
  Segment memory;
  std::uint64_t size_bytes = 0;
  std::unique_ptr<ChunkSet> chunks = {};  // null: all bytes are there
  // [if all bytes are there] The xxh3-128 of each chunk; computed once.
  [[nodiscard]] const std::vector<Hash128>& chunk_hashes() const;
  // Whether a reader got the descriptor: then the memory is never reused for another part.
  mutable std::atomic<bool> shared = false;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {memory.data(), size_bytes}; }

 private:
  mutable std::once_flag hashed_;
  mutable std::vector<Hash128> hashes_;
};

// The parts of this process, by publication and name; and memory without readers, for the next
// parts. Thread-safe.
class PartStore : public std::enable_shared_from_this<PartStore> {
 public:
  // Keeps at most `spare_bytes` of unused memory.
  explicit PartStore(std::uint64_t spare_bytes) : most_spare_(spare_bytes) {}

  [[nodiscard]] Segment take_memory();
  // `chunks`: records which chunks are there; null: all bytes are.
  std::shared_ptr<const StoredPart> put(const PublicationId& id, const std::string& name,
                                        Segment memory, std::uint64_t bytes,
                                        std::unique_ptr<ChunkSet> chunks = nullptr);
  // Null if there is no such part.
  [[nodiscard]] std::shared_ptr<const StoredPart> find(const PublicationId& id,
                                                       const std::string& name) const;
  void drop(const PublicationId& id);
  void keep_only(const std::vector<PublicationId>& ids);

 private:
  void give_back(Segment memory);

  const std::uint64_t most_spare_;
  mutable std::mutex mutex_;
  std::map<PublicationId, std::map<std::string, std::shared_ptr<const StoredPart>>> parts_;
  std::vector<Segment> spare_;
  std::uint64_t spare_bytes_ = 0;
};

// A part while it is being written.
class SegmentPart final : public HashedPart {
 public:
  SegmentPart(unsigned rank, std::string name, TakeRoom room, Segment memory)
      : HashedPart(concat("peer: rank ", rank), std::move(name), std::move(room)),
        memory_(std::move(memory)) {}
  // Takes the memory. Only after finish().
  [[nodiscard]] Segment take() { return std::move(memory_); }

 protected:
  Status store(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status read(std::uint64_t offset, std::span<std::byte> bytes) override;

 private:
  Segment memory_;
  std::uint64_t written_ = 0;  // bytes; those after it may be of an earlier part
};

}  // namespace driftless::peer
