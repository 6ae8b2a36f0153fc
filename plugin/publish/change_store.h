// SPDX-License-Identifier: Apache-2.0
// ChangeStore: the changes of weights that were captured while they were written, instead of being
// compared with a snapshot. A change is a position in a block, the value before the first capture
// and the value after the last; a change back to the old value is dropped.
//
// Memory: 4 bytes and two values per change, and 72 bytes per 2 MiB of weights. Past `limit_bytes`
// a block is only marked, and is sent whole. A publisher on a GPU keeps this memory for the next
// version (clear_and_keep()).
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "core/delta_view.h"

namespace driftless {

// The changes of a piece: ascending offsets from its first unit, and the values there after and
// before.
struct PieceChanges {
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values, old_values;

  [[nodiscard]] std::uint64_t size_bytes() const {
    return offsets.size() * sizeof(std::uint32_t) + 2 * values.size();
  }
  // Drops the changes. Keeps the memory, unless it is more than twice what they took.
  void clear();
};

// One thread at a time, unless a call states otherwise.
class ChangeStore {
 public:
  // Changes are kept in pieces, each for so many bytes of weights.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;

  struct Block {
    std::uint64_t units = 0;
    unsigned unit_bytes = 1;
  };
  ChangeStore() = default;
  ChangeStore(std::span<const Block> blocks, std::uint64_t limit_bytes);
  ChangeStore(ChangeStore&& other) noexcept { *this = std::move(other); }
  ChangeStore& operator=(ChangeStore&& other) noexcept;

  // Adds changes that are later than those in the store. `later.tensor` is the block's number, and
  // its positions lie in one piece. Any thread, for different pieces.
  void add(const DeltaView& later, const std::byte* old_values);
  // Adds later changes of one piece of a block.
  void add(std::uint32_t number, std::uint64_t piece, PieceChanges later);
  // Adds later changes of one piece. Afterwards `later` is empty; it may have taken over memory of
  // the store, for the caller's next changes.
  void exchange(std::uint32_t number, std::uint64_t piece, PieceChanges& later);
  // Frees the changes of blocks that are sent whole. Call it when no thread is in add() any more.
  void release_whole();
  // Adds all changes of another store of the same blocks, which is empty afterwards.
  void add(ChangeStore& later);
  // Marks a block to be sent whole. Any thread.
  void mark_whole(std::uint32_t number) { std::atomic_ref<bool>(blocks_[number].whole) = true; }
  // Forgets all changes of a block, and its mark.
  void drop(std::uint32_t number);

  [[nodiscard]] bool whole(std::uint32_t number) const { return blocks_[number].whole; }
  [[nodiscard]] std::uint64_t pieces(std::uint32_t number) const {
    return blocks_[number].pieces.size();
  }
  // The changes of a piece; may be empty.
  [[nodiscard]] DeltaView delta(std::uint32_t number, std::uint64_t piece) const;
  [[nodiscard]] const std::byte* old_values(std::uint32_t number, std::uint64_t piece) const {
    return blocks_[number].pieces[piece].old_values.data();
  }
  [[nodiscard]] std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const;
  void clear();
  // Keeps the memory for the next changes.
  void clear_and_keep();

 private:
  struct ChangedPieces : Block {
    std::vector<PieceChanges> pieces;
    bool whole = false;  // written by several threads as a std::atomic_ref
  };
  [[nodiscard]] static std::uint64_t piece_units(const Block& block) {
    return kPieceBytes / block.unit_bytes;
  }
  static void merge(PieceChanges& kept, const PieceChanges& later, std::size_t width);

  std::vector<ChangedPieces> blocks_;
  std::uint64_t limit_bytes_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace driftless
