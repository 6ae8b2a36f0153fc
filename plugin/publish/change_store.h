// SPDX-License-Identifier: Apache-2.0
// ChangeStore: what changed in weights that were captured as they were written, instead of being
// compared with a snapshot. A change is a position in a block, its value before the first capture
// and after the last; one that is as it was before is dropped.
//
// Memory: 4 bytes and two values a change, and 72 bytes for each 2 MiB of weights. Past `limit`
// bytes a block is only marked: it goes out whole. A publisher on a GPU keeps this memory for the
// next version (clear_and_keep()).
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "core/delta_view.h"

namespace driftless {

// Changes of a piece: ascending offsets from its first unit, the values there after and before.
struct PieceChanges {
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values, old_values;

  [[nodiscard]] std::uint64_t size_bytes() const {
    return offsets.size() * sizeof(std::uint32_t) + 2 * values.size();
  }
  // No changes, and the memory that they had, unless that is more than twice what they took.
  void clear();
};

// One thread at a time, except if a call says otherwise.
class ChangeStore {
 public:
  // Changes lie in pieces of so many bytes of weights.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;

  struct Block {
    std::uint64_t units = 0;
    unsigned unit_bytes = 1;
  };
  ChangeStore() = default;
  ChangeStore(std::span<const Block> blocks, std::uint64_t limit_bytes);
  ChangeStore(ChangeStore&& other) noexcept { *this = std::move(other); }
  ChangeStore& operator=(ChangeStore&& other) noexcept;

  // Later changes than those that are there. `later.tensor` is the block's number, its positions
  // lie in one piece. From any thread, for different pieces.
  void add(const DeltaView& later, const std::byte* old_values);
  // The same, of a piece of a block.
  void add(std::uint32_t number, std::uint64_t piece, PieceChanges later);
  // The same; `later` has no changes then, and perhaps memory of the store's for the next ones.
  void exchange(std::uint32_t number, std::uint64_t piece, PieceChanges& later);
  // Once add() is done on all threads: gives back what blocks that go out whole still hold.
  void release_whole();
  // All of another store of the same blocks, which is empty then.
  void add(ChangeStore& later);
  // From any thread.
  void mark_whole(std::uint32_t number) { std::atomic_ref<bool>(blocks_[number].whole) = true; }
  // A block as if nothing of it had been added.
  void drop(std::uint32_t number);

  [[nodiscard]] bool whole(std::uint32_t number) const { return blocks_[number].whole; }
  [[nodiscard]] std::uint64_t pieces(std::uint32_t number) const {
    return blocks_[number].pieces.size();
  }
  // Of a piece; perhaps none.
  [[nodiscard]] DeltaView delta(std::uint32_t number, std::uint64_t piece) const;
  [[nodiscard]] const std::byte* old_values(std::uint32_t number, std::uint64_t piece) const {
    return blocks_[number].pieces[piece].old_values.data();
  }
  [[nodiscard]] std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const;
  void clear();
  // Keeps the memory of what it held for the next changes.
  void clear_and_keep();

 private:
  struct OwnBlock : Block {
    std::vector<PieceChanges> pieces;
    bool whole = false;  // written by several threads as a std::atomic_ref
  };
  [[nodiscard]] static std::uint64_t piece_units(const Block& block) {
    return kPieceBytes / block.unit_bytes;
  }
  static void merge(PieceChanges& kept, const PieceChanges& later, std::size_t width);

  std::vector<OwnBlock> blocks_;
  std::uint64_t limit_bytes_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace driftless
