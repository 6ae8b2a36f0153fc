// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/version_fold.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/parallel.h"
#include "kernels/compact_ops.h"
#include "kernels/tensor_ops.h"

namespace driftless {
namespace {

// Units that a thread decodes at a time: whole tiles.
constexpr std::uint64_t kStretchUnits = 262144;
static_assert(kStretchUnits % kCompactTileUnits == 0 && kStretchUnits % kCompactByteTileUnits == 0);

// The lowest position that the next stretch of each block may begin with.
class NextPositions {
 public:
  std::uint64_t& of(const TensorBlock* block) {
    for (auto& [known, next] : next_) {
      if (known == block || (known != nullptr && block != nullptr && known->box == block->box)) {
        return next;
      }
    }
    return next_.emplace_back(block, 0).second;
  }

 private:
  std::vector<std::pair<const TensorBlock*, std::uint64_t>> next_;
};

// A coded block, and the result of decoding it.
struct CodedBlock {
  const CompactPiece* piece = nullptr;
  CompactIndex index;
  BlockPlace place;  // in the tensor
  UnitChanges changes;
  Digest change;  // what its changes add to the digest
};

// Adjacent tiles of a block.
struct TileStretch {
  CodedBlock* block = nullptr;
  std::size_t first_tile = 0, tiles = 0;
  std::uint64_t first_unit = 0, units = 0;  // in the block
  std::uint64_t first_change = 0;
  std::span<const std::byte> bytes;
  Digest change;
};

std::vector<TileStretch> stretches_of(CodedBlock& block) {
  std::vector<TileStretch> all;
  const std::vector<CompactTile>& tiles = block.index.tiles;
  const std::uint32_t tile_units = block.piece->table->fields.tile_units();
  const std::size_t stretch_tiles = kStretchUnits / tile_units;
  std::uint64_t changes = 0, byte = 0;
  for (std::size_t first = 0; first < tiles.size(); first += stretch_tiles) {
    TileStretch next;
    next.block = &block;
    next.first_tile = first;
    next.tiles = std::min(stretch_tiles, tiles.size() - first);
    next.first_unit = std::uint64_t{first} * tile_units;
    next.units = std::min(kStretchUnits, block.place.units - next.first_unit);
    next.first_change = changes;
    const std::uint64_t begin = byte;
    for (std::size_t t = first; t < first + next.tiles; ++t) {
      changes += tiles[t].changes;
      byte += tiles[t].bytes;
    }
    next.bytes = block.piece->block.tiles.subspan(begin, byte - begin);
    if (changes != next.first_change) all.push_back(next);
  }
  return all;
}

// Memory of one thread, kept from stretch to stretch.
struct StretchScratch {
  std::vector<std::byte> units, rows;
  CompactChanges decoded;
};

// Reads the old units of a stretch, which may lie in several places of the tensor.
Result<const std::byte*> read_stretch(const TileStretch& stretch, const OldUnits& old_units,
                                      unsigned width, StretchScratch& scratch) {
  const BlockPlace& place = stretch.block->place;
  const std::uint32_t tensor = stretch.block->piece->block.tensor;
  scratch.units.resize(stretch.units * width);
  if (place.contiguous()) {
    return old_units(tensor, place.first + stretch.first_unit, stretch.units, scratch.units.data());
  }
  for (std::uint64_t done = 0; done < stretch.units;) {
    const std::uint64_t unit = stretch.first_unit + done;
    const std::uint64_t count = std::min(stretch.units - done, place.run - unit % place.run);
    scratch.rows.resize(count * width);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const run,
                               old_units(tensor, place.at(unit), count, scratch.rows.data()));
    std::memcpy(scratch.units.data() + done * width, run, count * width);
    done += count;
  }
  return static_cast<const std::byte*>(scratch.units.data());
}

Status decode_stretch(const WeightLayout& layout, TileStretch& stretch, const OldUnits& old_units,
                      StretchScratch& scratch) {
  CodedBlock& block = *stretch.block;
  const std::uint32_t tensor = block.piece->block.tensor;
  const unsigned width = unit_bytes(layout[tensor].dtype);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const old,
                             read_stretch(stretch, old_units, width, scratch));
  CompactChanges& decoded = scratch.decoded;
  DRIFTLESS_RETURN_IF_ERROR(
      decode_compact(host_kernels(), *block.piece->table, old, stretch.units,
                     std::span(block.index.tiles).subspan(stretch.first_tile, stretch.tiles),
                     stretch.bytes, decoded));
  std::uint64_t* const positions = block.changes.positions.data() + stretch.first_change;
  for (std::size_t k = 0; k < decoded.offsets.size(); ++k) {
    positions[k] = block.place.at(stretch.first_unit + decoded.offsets[k]);
  }
  std::copy(
      decoded.values.begin(), decoded.values.end(),
      block.changes.values.begin() + static_cast<std::ptrdiff_t>(stretch.first_change * width));
  const DeltaView delta{tensor, width, stretch.first_unit, decoded.offsets, decoded.values.data()};
  stretch.change = digest_block_change(host_kernels(), digest_tensor_key(layout[tensor].name),
                                       block.place, delta, decoded.old_values.data());
  return {};
}

// Decodes all blocks in the memory of the weights (FoldOptions::there). False: the host must decode
// them.
Result<bool> decode_there(const WeightLayout& layout, std::vector<CodedBlock>& blocks,
                          const FoldOptions& options) {
  if (!options.there || blocks.empty()) return false;
  std::vector<CompactUnits> units;
  std::vector<std::uint32_t> tensors;
  for (CodedBlock& block : blocks) {
    const CompactBlock& coded = block.piece->block;
    CompactUnits coded_units;
    coded_units.place = block.place;
    coded_units.table = block.piece->table;
    coded_units.tiles = block.index.tiles;
    coded_units.streams = coded.tiles;
    coded_units.key = digest_tensor_key(layout[coded.tensor].name);
    coded_units.name =
        concat("tensor '", layout[coded.tensor].name, "'",
               coded.block != nullptr ? concat(" ", coded.block->box.to_string()) : "");
    coded_units.positions = block.changes.positions;
    coded_units.values = block.changes.values.data();
    units.push_back(std::move(coded_units));
    tensors.push_back(coded.tensor);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const bool done, options.there(units, tensors));
  for (std::size_t i = 0; done && i < blocks.size(); ++i) blocks[i].change = units[i].change;
  return done;
}

// `first`: no version was folded yet, so the old units are the present weights.
Status decode_blocks(const WeightLayout& layout, std::vector<CodedBlock>& blocks,
                     const OldUnits& old_units, const FoldOptions& options, bool first) {
  for (CodedBlock& block : blocks) {
    const CompactBlock& coded = block.piece->block;
    DRIFTLESS_ASSIGN_OR_RETURN(block.index, Frame::read_index(layout, coded));
    block.place =
        coded.block != nullptr ? coded.block->place : BlockPlace::all(layout[coded.tensor].units());
    block.changes.positions.resize(coded.changes);
    block.changes.values.resize(coded.changes * unit_bytes(layout[coded.tensor].dtype));
  }
  bool done = false;
  if (first) {
    DRIFTLESS_ASSIGN_OR_RETURN(done, decode_there(layout, blocks, options));
  }
  std::vector<TileStretch> stretches;
  for (CodedBlock& block : blocks) {
    if (done) break;
    const std::vector<TileStretch> some = stretches_of(block);
    stretches.insert(stretches.end(), some.begin(), some.end());
  }
  std::vector<StretchScratch> scratch(std::max(1U, options.threads));
  const auto named = [&](const CodedBlock& block, const Status& status) {
    const TensorBlock* const cut = block.piece->block.block;
    return status.with_context(concat("tensor '", layout[block.piece->block.tensor].name, "'",
                                      cut != nullptr ? concat(" ", cut->box.to_string()) : ""));
  };
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(stretches.size(), options.threads, [&](std::size_t i, unsigned worker) {
        const Status decoded = decode_stretch(layout, stretches[i], old_units, scratch[worker]);
        return decoded.ok() ? decoded : named(*stretches[i].block, decoded);
      }));
  for (const TileStretch& stretch : stretches) stretch.block->change += stretch.change;
  for (const CodedBlock& block : blocks) {
    if (block.change == block.index.change) continue;
    return named(block, error(StatusCode::kMismatch, "its changes add ", to_hex(block.change),
                              " to the digest, the delta says ", to_hex(block.index.change),
                              ": the weights are not the version's base, or the delta is damaged. "
                              "Nothing was changed; fetch a full version"));
  }
  return {};
}

void append_changes(UnitChanges& to, UnitChanges&& from) {
  if (to.positions.empty()) {
    to = std::move(from);
    return;
  }
  to.positions.insert(to.positions.end(), from.positions.begin(), from.positions.end());
  to.values.insert(to.values.end(), from.values.begin(), from.values.end());
}

// Old units: those of the weights, overlaid with the changes of earlier versions.
OldUnits units_with(const WeightLayout& layout, const OldUnits& old_units,
                    const std::map<std::uint32_t, UnitChanges>& changed) {
  return [&](std::uint32_t tensor, std::uint64_t first, std::uint64_t count,
             std::byte* scratch) -> Result<const std::byte*> {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const units,
                               old_units(tensor, first, count, scratch));
    const auto found = changed.find(tensor);
    if (found == changed.end()) return units;
    const std::vector<std::uint64_t>& positions = found->second.positions;
    auto at = std::lower_bound(positions.begin(), positions.end(), first);
    if (at == positions.end() || *at - first >= count) return units;
    const unsigned width = unit_bytes(layout[tensor].dtype);
    if (units != scratch) std::memcpy(scratch, units, count * width);
    for (; at != positions.end() && *at - first < count; ++at) {
      std::memcpy(
          scratch + (*at - first) * width,
          found->second.values.data() + static_cast<std::size_t>(at - positions.begin()) * width,
          width);
    }
    return static_cast<const std::byte*>(scratch);
  };
}

// One version's changes by tensor, unsorted.
Result<std::map<std::uint32_t, UnitChanges>> decode_version(const WeightLayout& layout,
                                                            const VersionSource& version,
                                                            const OldUnits& old_units,
                                                            const FoldOptions& options,
                                                            bool first) {
  std::map<std::uint32_t, UnitChanges> changes;
  std::vector<CodedBlock> coded;
  for (const std::uint32_t tensor : options.tensors) {
    const TensorChange* const change = version.find(tensor);
    if (change == nullptr) continue;
    UnitChanges& merged = changes[tensor];
    DRIFTLESS_RETURN_IF_ERROR(
        walk_pieces(layout, tensor, version.pieces(*change), [&](const DeltaView& delta) {
          for (const std::uint32_t offset : delta.offsets) {
            merged.positions.push_back(delta.origin + offset);
          }
          const std::span<const std::byte> values = delta.value_bytes();
          merged.values.insert(merged.values.end(), values.begin(), values.end());
        }));
    for (const CompactPiece& piece : version.compact(*change)) {
      if (options.needs != nullptr && !options.needs->has(tensor, piece.block.block)) continue;
      if (first && options.decoded != nullptr) {
        auto known = options.decoded->extract(piece.block.tiles.data());
        if (!known.empty()) {
          append_changes(merged, std::move(known.mapped()));
          continue;
        }
      }
      coded.emplace_back().piece = &piece;
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(decode_blocks(layout, coded, old_units, options, first));
  for (CodedBlock& block : coded) {
    append_changes(changes[block.piece->block.tensor], std::move(block.changes));
  }
  return changes;
}

}  // namespace

Status walk_pieces(const WeightLayout& layout, std::uint32_t tensor,
                   std::span<const BucketPiece> pieces,
                   const std::function<void(const DeltaView&)>& use) {
  NextPositions next_positions;
  for (const BucketPiece& piece : pieces) {
    std::uint64_t& next_position = next_positions.of(piece.entry.block);
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

void sort_changes(UnitChanges& changes, unsigned width) {
  if (std::is_sorted(changes.positions.begin(), changes.positions.end())) return;
  std::vector<std::size_t> order(changes.positions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return changes.positions[a] < changes.positions[b];
  });
  UnitChanges sorted{std::vector<std::uint64_t>(order.size()),
                     std::vector<std::byte>(changes.values.size())};
  for (std::size_t k = 0; k < order.size(); ++k) {
    sorted.positions[k] = changes.positions[order[k]];
    std::memcpy(sorted.values.data() + k * width, changes.values.data() + order[k] * width, width);
  }
  changes = std::move(sorted);
}

UnitChanges merge_changes(const UnitChanges& earlier, const UnitChanges& later, unsigned width) {
  UnitChanges both;
  both.positions.reserve(earlier.positions.size() + later.positions.size());
  both.values.reserve(earlier.values.size() + later.values.size());
  std::size_t a = 0, b = 0;
  const auto take = [&](const UnitChanges& from, std::size_t& at) {
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

Result<std::map<std::uint32_t, UnitChanges>> fold_chain(const WeightLayout& layout,
                                                        std::span<const VersionSource> chain,
                                                        const OldUnits& old_units,
                                                        const FoldOptions& options) {
  std::map<std::uint32_t, UnitChanges> all;
  const OldUnits now = units_with(layout, old_units, all);
  for (const VersionSource& version : chain) {
    if (!version.has_positions()) {
      return error(StatusCode::kUnsupported, version.version().path, ": '",
                   info(version.version().encoding).name,
                   "' cannot be folded with 'compact'; apply one version at a time");
    }
    Result<std::map<std::uint32_t, UnitChanges>> decoded =
        decode_version(layout, version, now, options, &version == chain.data());
    if (!decoded.ok()) return decoded.status().with_context(version.version().path);
    for (auto& [tensor, next] : *decoded) {
      const unsigned width = unit_bytes(layout[tensor].dtype);
      sort_changes(next, width);
      const auto twice = std::adjacent_find(next.positions.begin(), next.positions.end());
      if (twice != next.positions.end()) {
        return error(StatusCode::kCorrupt, version.version().path, ": tensor '",
                     layout[tensor].name, "': position ", *twice,
                     " is there twice; fetch the version again");
      }
      UnitChanges& sum = all[tensor];
      sum = sum.positions.empty() ? std::move(next) : merge_changes(sum, next, width);
    }
  }
  return all;
}

Status decode_frame(const WeightLayout& layout, const Frame& frame, const OldUnits& old_units,
                    const FoldOptions& options, DecodedBlocks& decoded) {
  std::vector<CompactPiece> pieces;
  for (const CompactBlock& block : frame.compact_blocks()) {
    if (!std::ranges::binary_search(options.tensors, block.tensor)) continue;
    if (options.needs != nullptr && !options.needs->has(block.tensor, block.block)) continue;
    pieces.push_back({block, &frame.compact_tables()[block.table]});
  }
  std::vector<CodedBlock> coded(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) coded[i].piece = &pieces[i];
  DRIFTLESS_RETURN_IF_ERROR(decode_blocks(layout, coded, old_units, options, true));
  for (CodedBlock& block : coded) {
    decoded[block.piece->block.tiles.data()] = std::move(block.changes);
  }
  return {};
}

}  // namespace driftless
