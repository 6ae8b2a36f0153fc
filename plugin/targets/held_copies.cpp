// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/held_copies.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

// The bits that the map's parameter holds for units [first, first + count), one after the other;
// zero for units that the map does not have.
Result<std::vector<std::byte>> gather(const MappedWeights& weights, const WeightMap& map,
                                      std::uint64_t first, std::uint64_t count) {
  std::vector<std::byte> bits(count * map.unit_bytes);
  const std::vector<std::byte> none(kMaxPieceUnits * sizeof(std::uint64_t));  // values are not used
  std::vector<DeltaPiece> pieces;
  for (std::uint64_t at = 0; at < count; at += kMaxPieceUnits) {
    const auto units =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxPieceUnits, count - at));
    pieces.push_back({map.tensor, units, first + at, all_offsets().data(), none.data(), nullptr});
  }
  std::vector<ChangePart> parts;
  for (const DeltaPiece& piece : pieces) {
    ChangePart part = part_of(piece, map);
    part.old_values = bits.data() + (piece.origin - first + part.begin) * map.unit_bytes;
    if (part.count > 0) parts.push_back(part);
  }
  if (parts.empty()) return bits;
  DRIFTLESS_RETURN_IF_ERROR(weights.memory->place(parts, weights.threads).status());
  return bits;
}

// Appends `count` units to the copy, converted back. Lists those whose bits no value converts to.
template <typename Cast>
void append(const std::byte* bits, std::uint64_t first, std::uint64_t count, HeldCopy& copy) {
  for (std::uint64_t k = 0; k < count; ++k) {
    typename Cast::To there;
    typename Cast::From value;
    std::memcpy(&there, bits + k * sizeof(there), sizeof(there));
    if (!undo_cast<Cast>(there, value)) copy.foreign.push_back(first + k);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    copy.values.insert(copy.values.end(), bytes, bytes + sizeof(value));
  }
}

Result<HeldCopy> read_copy(const MappedWeights& weights, const WeightMap& map, std::uint64_t first,
                           std::uint64_t count) {
  HeldCopy copy{map.parameter, {}, {}, {}};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> bits, gather(weights, map, first, count));
  const auto [begin, end] = map.range(first, count);
  for (std::uint64_t at = begin; at < end;) {
    const StridedMap::Run run = map.map.run_at(at);
    const std::uint64_t last = std::min(run.end, end);
    if (run.target != StridedMap::kOutside) {
      const std::byte* const from = bits.data() + (at - first) * map.unit_bytes;
      copy.runs.push_back({at, last - at});
      switch (map.cast) {
        case ValueCast::kBF16ToF32: append<BF16ToF32>(from, at, last - at, copy); break;
        case ValueCast::kF16ToF32: append<F16ToF32>(from, at, last - at, copy); break;
        default: copy.values.insert(copy.values.end(), from, from + (last - at) * map.unit_bytes);
      }
    }
    at = last;
  }
  return copy;
}

// One block of a tensor: add() takes and sums the values of the share, agrees() compares other
// places with them.
class Block {
 public:
  Block(std::uint64_t first, std::uint64_t units, unsigned width)
      : first_(first), width_(width), values_(units * width), known_(units) {}

  Digest add(const HeldCopy& copy, const DigestTensorKey& key) {
    Digest sum;
    each_run(copy, [&](const HeldRun& run, std::span<const std::byte> values) {
      sum += host_kernels().digest(key, run.first * width_, values);
      std::ranges::copy(values, values_.begin() + offset(run.first));
      std::fill_n(known_.begin() + static_cast<std::ptrdiff_t>(run.first - first_), run.count, 1);
    });
    return sum;
  }
  [[nodiscard]] bool agrees(const HeldCopy& copy) const {
    bool same = copy.foreign.empty();
    each_run(copy, [&](const HeldRun& run, std::span<const std::byte> values) {
      for (std::uint64_t k = 0; k < run.count; ++k) {
        const std::uint64_t unit = run.first - first_ + k;
        same = same && (known_[unit] == 0 || std::memcmp(values_.data() + unit * width_,
                                                         values.data() + k * width_, width_) == 0);
      }
    });
    return same;
  }

 private:
  [[nodiscard]] std::ptrdiff_t offset(std::uint64_t unit) const {
    return static_cast<std::ptrdiff_t>((unit - first_) * width_);
  }
  template <typename Use>
  void each_run(const HeldCopy& copy, const Use& use) const {
    std::size_t at = 0;
    for (const HeldRun& run : copy.runs) {
      use(run, std::span(copy.values).subspan(at, run.count * width_));
      at += run.count * width_;
    }
  }

  std::uint64_t first_;
  unsigned width_;
  std::vector<std::byte> values_;
  std::vector<char> known_;
};

}  // namespace

Result<std::vector<HeldCopy>> read_copies(const MappedWeights& weights, std::uint32_t tensor,
                                          std::uint64_t first, std::uint64_t count) {
  const std::uint64_t units = weights.layout[tensor].units();
  if (first > units || count > units - first) {
    return error(StatusCode::kInvalidArgument, "tensor '", weights.layout[tensor].name,
                 "': cannot read ", count, " elements from element ", first, " on: it has ", units);
  }
  std::vector<HeldCopy> copies;
  for (const WeightMap* const map : weights.maps_of(tensor, false)) {
    if (!reversible(map->cast)) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(HeldCopy copy, read_copy(weights, *map, first, count));
    if (!copy.runs.empty()) copies.push_back(std::move(copy));
  }
  return copies;
}

Result<BlockSums> sum_blocks(const MappedWeights& weights, std::uint32_t tensor,
                             std::uint64_t block_units) {
  const MappedWeights::Tensor& mapped = weights.tensors[tensor];
  const std::uint64_t units = weights.layout[tensor].units();
  const unsigned width = unit_bytes(weights.layout[tensor].dtype);
  if (block_units == 0) return error(StatusCode::kInvalidArgument, "blocks of no elements");
  BlockSums result;
  for (std::uint64_t first = 0; first < units; first += block_units) {
    const std::uint64_t count = std::min(block_units, units - first);
    Block block(first, count, width);
    Digest sum;
    bool agree = true;
    for (const bool in_share : {true, false}) {
      for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
        if (weights.in_share[m] != in_share || !reversible(weights.maps[m].cast)) continue;
        DRIFTLESS_ASSIGN_OR_RETURN(const HeldCopy copy,
                                   read_copy(weights, weights.maps[m], first, count));
        if (in_share) {
          sum += block.add(copy, mapped.key);
          agree = agree && copy.foreign.empty();
        } else {
          agree = agree && block.agrees(copy);
        }
      }
    }
    if (!agree) result.disagree.push_back(result.sums.size());
    result.sums.push_back(sum);
  }
  return result;
}

}  // namespace driftless
