// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/change_store.h"

#include <algorithm>
#include <cstring>

namespace driftless {

ChangeStore::ChangeStore(std::span<const Block> blocks, std::uint64_t limit_bytes)
    : limit_bytes_(limit_bytes) {
  for (const Block& block : blocks) {
    ChangedPieces& changed = blocks_.emplace_back(ChangedPieces{block, {}, false});
    changed.pieces.resize((block.units + piece_units(block) - 1) / piece_units(block));
  }
}

ChangeStore& ChangeStore::operator=(ChangeStore&& other) noexcept {
  blocks_ = std::move(other.blocks_);
  limit_bytes_ = other.limit_bytes_;
  bytes_ = other.bytes_.load();
  return *this;
}

// Merges two ascending lists. A position in both keeps the older old value; if the new value equals
// it, the change is dropped.
void ChangeStore::merge(PieceChanges& kept, const PieceChanges& later, std::size_t width) {
  PieceChanges merged;
  const std::size_t most = kept.offsets.size() + later.offsets.size();
  merged.offsets.reserve(most);
  merged.values.reserve(most * width);
  merged.old_values.reserve(most * width);
  const auto put = [&](std::uint32_t offset, const std::byte* value, const std::byte* before) {
    if (std::memcmp(value, before, width) == 0) return;
    merged.offsets.push_back(offset);
    merged.values.insert(merged.values.end(), value, value + width);
    merged.old_values.insert(merged.old_values.end(), before, before + width);
  };
  std::size_t i = 0, k = 0;
  while (i < kept.offsets.size() || k < later.offsets.size()) {
    const bool takes_kept = k == later.offsets.size() ||
                            (i < kept.offsets.size() && kept.offsets[i] <= later.offsets[k]);
    if (!takes_kept) {
      put(later.offsets[k], later.values.data() + k * width, later.old_values.data() + k * width);
      ++k;
      continue;
    }
    const bool both = k < later.offsets.size() && kept.offsets[i] == later.offsets[k];
    put(kept.offsets[i], both ? later.values.data() + k * width : kept.values.data() + i * width,
        kept.old_values.data() + i * width);
    ++i;
    if (both) ++k;
  }
  merged.offsets.shrink_to_fit();
  merged.values.shrink_to_fit();
  merged.old_values.shrink_to_fit();
  kept = std::move(merged);
}

void ChangeStore::add(const DeltaView& later, const std::byte* old_values) {
  if (later.offsets.empty()) return;
  const std::uint64_t units = piece_units(blocks_[later.tensor]);
  const std::span<const std::byte> values = later.value_bytes();
  PieceChanges changes{{later.offsets.begin(), later.offsets.end()},
                       {values.begin(), values.end()},
                       {old_values, old_values + values.size()}};
  const auto begin = static_cast<std::uint32_t>(later.origin % units);
  if (begin != 0) std::ranges::for_each(changes.offsets, [&](auto& offset) { offset += begin; });
  add(later.tensor, later.origin / units, std::move(changes));
}

void PieceChanges::clear() {
  constexpr std::size_t kLeastOffsets = 1024;
  if (offsets.capacity() > std::max(kLeastOffsets, 2 * offsets.size())) {
    *this = {};
    return;
  }
  offsets.clear();
  values.clear();
  old_values.clear();
}

void ChangeStore::add(std::uint32_t number, std::uint64_t piece, PieceChanges later) {
  exchange(number, piece, later);
}

void ChangeStore::exchange(std::uint32_t number, std::uint64_t piece, PieceChanges& later) {
  ChangedPieces& block = blocks_[number];
  const std::atomic_ref<bool> whole(block.whole);
  if (!whole && bytes_ + later.size_bytes() > limit_bytes_) whole = true;
  if (!whole) {
    PieceChanges& kept = block.pieces[piece];
    const std::uint64_t before = kept.size_bytes();
    if (kept.offsets.empty()) {
      std::swap(kept, later);
    } else {
      merge(kept, later, block.unit_bytes);
    }
    bytes_ += kept.size_bytes() - before;
  }
  later.offsets.clear();
  later.values.clear();
  later.old_values.clear();
}

void ChangeStore::release_whole() {
  for (ChangedPieces& block : blocks_) {
    if (!block.whole) continue;
    for (PieceChanges& piece : block.pieces) {
      bytes_ -= piece.size_bytes();
      piece = {};
    }
  }
}

void ChangeStore::add(ChangeStore& later) {
  if (empty()) {
    std::swap(blocks_, later.blocks_);
    bytes_ = later.bytes_.exchange(bytes_);
    return;
  }
  for (std::uint32_t number = 0; number < blocks(); ++number) {
    blocks_[number].whole = blocks_[number].whole || later.whole(number);
    for (std::uint64_t piece = 0; piece < pieces(number); ++piece) {
      add(later.delta(number, piece), later.old_values(number, piece));
    }
  }
  release_whole();
  later.clear();
}

void ChangeStore::drop(std::uint32_t number) {
  blocks_[number].whole = true;
  release_whole();
  blocks_[number].whole = false;
}

DeltaView ChangeStore::delta(std::uint32_t number, std::uint64_t piece) const {
  const ChangedPieces& block = blocks_[number];
  const PieceChanges& changes = block.pieces[piece];
  return {number, block.unit_bytes, piece * piece_units(block), changes.offsets,
          changes.values.data()};
}

bool ChangeStore::empty() const {
  return bytes_ == 0 && std::ranges::none_of(blocks_, &ChangedPieces::whole);
}

void ChangeStore::clear() {
  for (ChangedPieces& block : blocks_) {
    block.whole = false;
    for (PieceChanges& piece : block.pieces) piece = {};
  }
  bytes_ = 0;
}

void ChangeStore::clear_and_keep() {
  for (ChangedPieces& block : blocks_) {
    block.whole = false;
    std::ranges::for_each(block.pieces, &PieceChanges::clear);
  }
  bytes_ = 0;
}

}  // namespace driftless
