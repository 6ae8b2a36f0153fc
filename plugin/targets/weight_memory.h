// SPDX-License-Identifier: Apache-2.0
// WeightMemory: the memory that weights lie in, and how bytes get there and back through maps. The
// host's here; a GPU's in plugin/device/device_factories.h. Nothing else knows where weights
// lie. One thread at a time, except if a call says otherwise.
#pragma once

#include <algorithm>

#include "core/block_place.h"
#include "core/compact.h"
#include "kernels/host_kernels.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// Deltas of several versions, decoded and folded: every changed unit once, with its last value.

inline constexpr std::uint32_t kMaxPieceUnits = 16384;

// Changes of one tensor, close to each other: units origin + offsets[k] become values[k].
struct DeltaPiece {
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;   // at most kMaxPieceUnits
  std::uint64_t origin = 0;  // in units
  const std::uint32_t* offsets = nullptr;
  const std::byte* values = nullptr;  // in the buckets, or in the fold's memory
  std::byte* old_values = nullptr;    // room for as many, for who commits
};

// Changes and what they point to, in the order of the tensors. No two touch the same unit.
struct DeltaPieces {
  struct Memory {
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values;  // empty if the pieces' values lie elsewhere
    std::vector<std::byte> old_values;
  };
  std::vector<DeltaPiece> pieces;
  std::vector<Memory> memory;
  std::uint64_t units = 0;
};

// One place where units of a checkpoint's tensor lie. A contiguous tensor is one map, the identity;
// a slice of a tensor-parallel group, a fused projection, a stacked expert and a caller's strided
// tensor are others.
struct WeightMap {
  std::uint32_t tensor = 0;   // in the layout
  std::byte* data = nullptr;  // unit 0 of the map's target; the caller's memory
  unsigned unit_bytes = 1;    // of the target
  StridedMap map;
  ValueCast cast = ValueCast::kNone;
  std::string parameter;  // for messages; empty: it is the tensor itself

  // Whether units that adjoin in the tensor adjoin there, with the same bits.
  [[nodiscard]] bool plain() const { return cast == ValueCast::kNone && map.plain(); }
  // Of the units [origin, origin + count) those within the map's range: a begin and an end, which
  // is not below it.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> range(std::uint64_t origin,
                                                              std::uint64_t count) const {
    const std::uint64_t begin = std::max(origin, map.source_offset);
    return {begin, std::max(begin, std::min(origin + count, map.source_end))};
  }
  // Where unit `unit` of the tensor lies; the map is plain and has it.
  [[nodiscard]] std::byte* at(std::uint64_t unit) const {
    return data + (map.target_offset + (unit - map.source_offset)) * unit_bytes;
  }
};

// The changes of one piece that may lie in one map.
struct ChangePart {
  const DeltaPiece* piece = nullptr;
  const WeightMap* map = nullptr;
  std::uint32_t begin = 0, count = 0;  // of the piece's changes
  // Room for `count`, in the target's width; or null, where the memory measures (`key`).
  std::byte* old_values = nullptr;
  const DigestTensorKey* key = nullptr;  // of the tensor, for part_changes()

  [[nodiscard]] const std::uint32_t* offsets() const { return piece->offsets + begin; }
  [[nodiscard]] const std::byte* values() const {
    return piece->values + std::size_t{begin} * source_bytes(map->cast, map->unit_bytes);
  }
};
// The piece's changes that may lie in the map.
[[nodiscard]] ChangePart part_of(const DeltaPiece& piece, const WeightMap& map);

// A part that is not as it should be.
struct PartFault {
  std::size_t part = 0;
  bool written = false;  // what was written is not there; else what was there is not the old value
};

struct TensorDigest {
  std::uint32_t tensor = 0;  // in the layout
  Digest digest;
};

// Changes made ready: everything that writing and taking back need is in place.
class PlacedChanges {
 public:
  virtual ~PlacedChanges() = default;
  // Compares what is there with the old values, writes the new ones, and reads them back. A part
  // that is not what it should be, or none. After a fault, or an error, some may have been written:
  // then take_back().
  [[nodiscard]] virtual Result<std::optional<PartFault>> write() = 0;
  // Puts back what write() replaced, as far as it came.
  [[nodiscard]] virtual Status take_back() = 0;
  // What the changes add to the digest, one number for each version in their order, if the
  // memory measures it: of the first version once staged, of all once written. Empty if the old
  // values came to the host instead (ChangePart::old_values).
  [[nodiscard]] virtual std::span<const Digest> measured() const { return {}; }
  // The same by tensor, of all versions together, once written: each tensor that changed once.
  [[nodiscard]] virtual std::span<const TensorDigest> measured_tensors() const { return {}; }
  // What each part adds to the digest of what its map holds, once staged, if the memory measures
  // it: nothing of a map that cannot be read back.
  [[nodiscard]] virtual std::span<const Digest> part_changes() const { return {}; }
};

// Bytes of a tensor from `byte_offset` on, in either memory.
struct TensorBytes {
  DensePiece piece;
  const DigestTensorKey* key = nullptr;
};

struct MapToSum {
  const WeightMap* map = nullptr;
  const DigestTensorKey* key = nullptr;  // of its tensor
};

// A tensor that lies contiguous in the memory.
struct ContiguousTensor {
  std::byte* data = nullptr;  // null: not held
  std::uint64_t units = 0;
  const DigestTensorKey* key = nullptr;
};

// The changes of one entry of a bucket that may lie in one map.
struct BucketPart {
  std::size_t bucket = 0;  // in VersionSource::buckets()
  const BucketEntry* entry = nullptr;
  const WeightMap* map = nullptr;
  std::uint64_t tensor_units = 0;
  const DigestTensorKey* key = nullptr;  // of the tensor
};

// A memory that decodes buckets by itself, where they lie.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;
  struct Placed {
    std::unique_ptr<PlacedChanges> changes;
    std::uint64_t units = 0;
  };
  // `chain`: adjoining positional deltas. `tensors`: one for each tensor of the layout.
  [[nodiscard]] virtual Result<Placed> place_buckets(std::span<const ContiguousTensor> tensors,
                                                     std::vector<VersionSource> chain) = 0;
  // The same of one version through maps, which may be any, and which outlive the result. `parts`
  // are of `buckets`, the version's, of which it takes a copy. kNoSpace: it has no room for all
  // changes of these buckets, whatever the maps have of them.
  [[nodiscard]] virtual Result<std::unique_ptr<PlacedChanges>> place_parts(
      std::span<const BucketPart> parts, std::span<const SourceBucket> buckets) = 0;
};

// A block of `compact` (docs/formats/compact.md), and what comes of decoding it.
struct CompactUnits {
  std::span<const WeightMap* const> maps;  // of its tensor: have all of it, and convert nothing
  BlockPlace place;                        // in the tensor
  const CompactTable* table = nullptr;
  std::span<const CompactTile> tiles;
  std::span<const std::byte> streams;  // of the tiles, on the host
  DigestTensorKey key;
  std::string name;  // for messages
  // Room for all changes; positions are those of the tensor.
  std::span<std::uint64_t> positions;
  std::byte* values = nullptr;
  Digest change;  // that they are
};

class WeightMemory {
 public:
  virtual ~WeightMemory() = default;
  [[nodiscard]] virtual MemoryKind kind() const = 0;
  // Reads the parts' old values: to the host, or a memory that measures what parts change keeps
  // those of parts without room. No two parts write the same unit. What they point to outlives the
  // result.
  [[nodiscard]] virtual Result<std::unique_ptr<PlacedChanges>> place(
      std::span<const ChangePart> parts, unsigned threads) = 0;
  // Every unit from `origin` on, `count` of them; values are in the tensor's width. read() is for
  // maps that convert nothing, into host memory; values that no map has are not defined. write()
  // writes what each map has; `values` lie on the host, or in this memory.
  [[nodiscard]] virtual Status read(std::span<const WeightMap* const> maps, std::uint64_t origin,
                                    std::uint64_t count, std::byte* values) = 0;
  [[nodiscard]] virtual Status write(std::span<const WeightMap* const> maps, std::uint64_t origin,
                                     std::uint64_t count, const std::byte* values,
                                     MemoryKind from) = 0;
  // Until everything that was written is there.
  [[nodiscard]] virtual Status finish() = 0;
  // Threads that may call read() and write() at the same time, for different units.
  [[nodiscard]] virtual unsigned threads(unsigned wanted) const = 0;
  // Bytes of this memory, as they are, to the host.
  [[nodiscard]] virtual Status fetch(std::span<std::byte> to, const std::byte* from) = 0;
  // The sum of these bytes' digests, worked out where this memory is.
  [[nodiscard]] virtual Result<Digest> digest(std::span<const TensorBytes> bytes,
                                              unsigned threads) = 0;
  // What each map holds, converted back: maps whose conversions are reversible. At memory speed.
  [[nodiscard]] virtual Result<std::vector<StridedSum>> sum_maps(std::span<const MapToSum> maps,
                                                                 unsigned threads) = 0;
  // Zeroed, at a multiple of 256 bytes, until the last owner goes.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual StagingMemory staging_memory() const = 0;
  // Whether changes that it places say what they change (PlacedChanges::part_changes()).
  [[nodiscard]] virtual bool measures_parts() const { return false; }
  // Null where deltas are decoded on the host.
  [[nodiscard]] virtual BucketMemory* buckets() = 0;
  // Decodes the blocks where the weights lie. False if this memory leaves it to the host, which
  // reads the old units. kMismatch, naming the tensor, if a block does not decode.
  [[nodiscard]] virtual Result<bool> decode_compact(std::span<CompactUnits> /*blocks*/) {
    return false;
  }
};

[[nodiscard]] std::shared_ptr<WeightMemory> make_host_memory();

// From the units of a block, in a tensor of `tensor_units`, to memory that holds the block alone.
[[nodiscard]] Result<StridedMap> map_of(const BlockPlace& block, std::uint64_t tensor_units);

// As WeightMemory::digest(), of bytes that all lie on the host.
// `done` (may be empty) hears of every stretch that was read, from any thread.
[[nodiscard]] Digest digest_on_host(std::span<const TensorBytes> bytes, unsigned threads,
                                    const std::function<void(const TensorBytes&)>& done = {});

// Values as a map's target has them, `count` of them.
void convert_values(ValueCast cast, unsigned unit_bytes, const std::byte* values,
                    std::uint64_t count, std::byte* out);

// 0, 1, 2, ... below kMaxPieceUnits: the offsets of a piece that has every unit.
[[nodiscard]] std::span<const std::uint32_t> all_offsets();

}  // namespace driftless
