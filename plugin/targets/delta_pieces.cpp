// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/weight_memory.h"

#include <algorithm>
#include <limits>

#include "core/parallel.h"

namespace driftless {
namespace {

// One version's changes of a tensor, or those of several folded.
struct Changes {
  std::vector<std::uint64_t> positions;  // ascending
  std::vector<std::byte> values;
};

// Calls use(delta) for every stretch of the pieces, whose positions must ascend.
template <typename Use>
Status walk(const WeightLayout& layout, std::uint32_t tensor, std::span<const BucketPiece> pieces,
            const Use& use) {
  std::uint64_t next_position = 0;
  for (const BucketPiece& piece : pieces) {
    EntryCursor cursor(layout, piece.bucket, piece.entry);
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
      if (delta.count() == 0) break;
      const std::uint64_t first = delta.origin + delta.offsets.front();
      if (first < next_position) {
        return error(StatusCode::kCorrupt, "tensor '", layout[tensor].name, "': position ", first,
                     " comes after position ", next_position - 1, "; fetch the version again");
      }
      next_position = delta.origin + delta.offsets.back() + 1;
      use(delta);
    }
  }
  return {};
}

// `later` wins where both change a unit.
Changes merge(const Changes& earlier, const Changes& later, unsigned width) {
  Changes both;
  both.positions.reserve(earlier.positions.size() + later.positions.size());
  both.values.reserve(earlier.values.size() + later.values.size());
  std::size_t a = 0, b = 0;
  const auto take = [&](const Changes& from, std::size_t& at) {
    both.positions.push_back(from.positions[at]);
    const auto value = from.values.begin() + static_cast<std::ptrdiff_t>(at * width);
    both.values.insert(both.values.end(), value, value + width);
    ++at;
  };
  while (a < earlier.positions.size() && b < later.positions.size()) {
    if (earlier.positions[a] < later.positions[b]) {
      take(earlier, a);
    } else {
      if (earlier.positions[a] == later.positions[b]) ++a;
      take(later, b);
    }
  }
  while (a < earlier.positions.size()) take(earlier, a);
  while (b < later.positions.size()) take(later, b);
  return both;
}

// The changes of one tensor.
class TensorFold {
 public:
  TensorFold(const WeightLayout& layout, const TensorVersions& versions,
             std::vector<DeltaPiece>& pieces, DeltaPieces::Memory& memory)
      : layout_(layout),
        versions_(versions),
        pieces_(pieces),
        memory_(memory),
        width_(unit_bytes(layout[versions.tensor].dtype)) {}

  Status make() {
    if (versions_.versions.size() == 1) {
      DRIFTLESS_RETURN_IF_ERROR(decode());
    } else {
      DRIFTLESS_RETURN_IF_ERROR(fold());
    }
    memory_.old_values.resize(memory_.offsets.size() * width_);
    std::uint64_t at = 0;
    for (DeltaPiece& piece : pieces_) {
      piece.offsets = memory_.offsets.data() + at;
      piece.old_values = memory_.old_values.data() + at * width_;
      if (piece.values == nullptr) piece.values = memory_.values.data() + at * width_;
      at += piece.count;
    }
    return {};
  }

 private:
  // One version: the values stay where they are.
  Status decode() {
    return walk(layout_, versions_.tensor, versions_.versions.front(), [&](const DeltaView& delta) {
      for (std::size_t at = 0; at < delta.offsets.size(); at += kMaxPieceUnits) {
        const auto some = delta.offsets.subspan(
            at, std::min<std::size_t>(kMaxPieceUnits, delta.offsets.size() - at));
        memory_.offsets.insert(memory_.offsets.end(), some.begin(), some.end());
        pieces_.push_back({versions_.tensor, static_cast<std::uint32_t>(some.size()), delta.origin,
                           nullptr, delta.values + at * width_, nullptr});
      }
    });
  }

  Status fold() {
    Changes all;
    for (const std::span<const BucketPiece> version : versions_.versions) {
      Changes next;
      DRIFTLESS_RETURN_IF_ERROR(
          walk(layout_, versions_.tensor, version, [&](const DeltaView& delta) {
            for (const std::uint32_t offset : delta.offsets) {
              next.positions.push_back(delta.origin + offset);
            }
            const std::span<const std::byte> values = delta.value_bytes();
            next.values.insert(next.values.end(), values.begin(), values.end());
          }));
      all = all.positions.empty() ? std::move(next) : merge(all, next, width_);
    }
    memory_.values = std::move(all.values);
    for (const std::uint64_t position : all.positions) add(position);
    return {};
  }

  void add(std::uint64_t position) {
    const bool joins = !pieces_.empty() && pieces_.back().count < kMaxPieceUnits &&
                       position - pieces_.back().origin < std::numeric_limits<std::uint32_t>::max();
    if (!joins) pieces_.push_back({versions_.tensor, 0, position, nullptr, nullptr, nullptr});
    DeltaPiece& piece = pieces_.back();
    memory_.offsets.push_back(static_cast<std::uint32_t>(position - piece.origin));
    ++piece.count;
  }

  const WeightLayout& layout_;
  const TensorVersions& versions_;
  std::vector<DeltaPiece>& pieces_;
  DeltaPieces::Memory& memory_;
  unsigned width_;
};

}  // namespace

Result<DeltaPieces> fold_deltas(const WeightLayout& layout, std::span<const TensorVersions> tensors,
                                unsigned threads) {
  DeltaPieces fold;
  fold.memory.resize(tensors.size());
  std::vector<std::vector<DeltaPiece>> pieces(tensors.size());
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(tensors.size(), threads, [&](std::size_t i, unsigned) {
    return TensorFold(layout, tensors[i], pieces[i], fold.memory[i]).make();
  }));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    fold.pieces.insert(fold.pieces.end(), pieces[i].begin(), pieces[i].end());
    fold.units += fold.memory[i].offsets.size();
  }
  return fold;
}

}  // namespace driftless
