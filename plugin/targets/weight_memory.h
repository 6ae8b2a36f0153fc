// SPDX-License-Identifier: Apache-2.0
// WeightMemory: the memory that weights lie in, and the operations that read and write them there
// through maps. make_host_memory() makes the host's; plugin/device/device_factories.h makes a
// GPU's. One thread at a time, unless a call states otherwise.
#pragma once

#include <algorithm>

#include "core/block_place.h"
#include "core/compact.h"
#include "core/device_space.h"
#include "kernels/host_kernels.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// The most changes in one DeltaPiece.
inline constexpr std::uint32_t kMaxPieceUnits = 16384;

// Changes of one tensor, close to each other: units origin + offsets[k] become values[k].
struct DeltaPiece {
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;   // at most kMaxPieceUnits
  std::uint64_t origin = 0;  // in units
  const std::uint32_t* offsets = nullptr;
  const std::byte* values = nullptr;  // in a bucket, or in DeltaPieces::memory
  std::byte* old_values = nullptr;    // room for `count` values; null: not needed
};

// Changes, and the memory that they point to. Pieces are in the order of the tensors. Each changed
// unit is in one piece, once, with its last value.
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

// One place where units of a checkpoint's tensor lie. A contiguous tensor is one map, the identity.
// Other maps describe a slice of a tensor-parallel group, a fused projection, a stacked expert or a
// caller's strided tensor.
struct WeightMap {
  std::uint32_t tensor = 0;   // in the layout
  std::byte* data = nullptr;  // unit 0 of the map's target; the caller's memory
  unsigned unit_bytes = 1;    // of the target
  StridedMap map;
  ValueCast cast = ValueCast::kNone;
  std::string parameter;  // for messages; empty: the tensor itself

  // Whether adjoining units of the tensor adjoin in the target, with the same bits.
  [[nodiscard]] bool plain() const { return cast == ValueCast::kNone && map.plain(); }
  // The part of [origin, origin + count) within the map's source range: begin and end, begin <=
  // end.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> range(std::uint64_t origin,
                                                              std::uint64_t count) const {
    const std::uint64_t begin = std::max(origin, map.source_offset);
    return {begin, std::max(begin, std::min(origin + count, map.source_end))};
  }
  // The address of unit `unit` of the tensor; the map must be plain and have the unit.
  [[nodiscard]] std::byte* at(std::uint64_t unit) const {
    return data + (map.target_offset + (unit - map.source_offset)) * unit_bytes;
  }
};

// The changes of one piece within one map's source range. The map may lack units within that range.
struct ChangePart {
  const DeltaPiece* piece = nullptr;
  const WeightMap* map = nullptr;
  std::uint32_t begin = 0, count = 0;  // of the piece's changes
  // Room for `count` old values, in the target's width. Null if the memory measures changes itself
  // (measures_parts()); it then needs `key`.
  std::byte* old_values = nullptr;
  const DigestTensorKey* key = nullptr;  // of the tensor

  [[nodiscard]] const std::uint32_t* offsets() const { return piece->offsets + begin; }
  [[nodiscard]] const std::byte* values() const {
    return piece->values + std::size_t{begin} * source_bytes(map->cast, map->unit_bytes);
  }
};
// Selects the changes of `piece` within the map's source range.
[[nodiscard]] ChangePart part_of(const DeltaPiece& piece, const WeightMap& map);

// A part whose memory has unexpected values.
struct PartFault {
  std::size_t part = 0;
  // true: reading back did not find a new value; false: an old value was not there before writing.
  bool written = false;
};

struct TensorDigest {
  std::uint32_t tensor = 0;  // in the layout
  Digest digest;
};

// Prepared changes: all that is needed to write them and to take them back.
class PlacedChanges {
 public:
  virtual ~PlacedChanges() = default;
  // Writes the changes. If they were placed as parts, first compares the memory with the old
  // values, and reads the new values back afterwards; returns a part with other values, if there is
  // one. After such a fault, or an error, some changes may have been written: call take_back().
  [[nodiscard]] virtual Result<std::optional<PartFault>> write() = 0;
  // Restores the old values, as far as write() replaced them.
  [[nodiscard]] virtual Status take_back() = 0;
  // What each version adds to the digest, if the memory decodes and measures whole versions
  // (BucketMemory::place_buckets()); otherwise empty. After staging: one number, for the first
  // version. After write(): one for each version.
  [[nodiscard]] virtual std::span<const Digest> measured() const { return {}; }
  // The same after write(), for each changed tensor and all versions together.
  [[nodiscard]] virtual std::span<const TensorDigest> measured_tensors() const { return {}; }
  // What each part adds to the digest of its map's target, if the memory measures parts; otherwise
  // empty. Known once the changes are placed. Zero if the map cannot be read back.
  [[nodiscard]] virtual std::span<const Digest> part_changes() const { return {}; }
};

// Bytes of a tensor, in host or device memory.
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

// The changes of one entry of a bucket within one map's source range.
struct BucketPart {
  std::size_t bucket = 0;  // in VersionSource::buckets()
  const BucketEntry* entry = nullptr;
  const WeightMap* map = nullptr;
  std::uint64_t tensor_units = 0;
  const DigestTensorKey* key = nullptr;  // of the tensor
};

// Decodes buckets in the memory of the weights.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;
  struct Placed {
    std::unique_ptr<PlacedChanges> changes;
    std::uint64_t units = 0;
  };
  // For weights that are all contiguous. `chain`: adjoining positional deltas. `tensors`: one for
  // each tensor of the layout.
  [[nodiscard]] virtual Result<Placed> place_buckets(std::span<const ContiguousTensor> tensors,
                                                     std::vector<VersionSource> chain) = 0;
  // Places one version through maps of any kind, which outlive the result. `buckets`: all buckets
  // of the version, which are copied. `parts`: their entries, each with the maps that it meets.
  // It takes room for all changes of the buckets, including those that no map has: kNoSpace if the
  // memory does not have that much.
  [[nodiscard]] virtual Result<std::unique_ptr<PlacedChanges>> place_parts(
      std::span<const BucketPart> parts, std::span<const SourceBucket> buckets) = 0;
};

// A block of `compact` (docs/formats/compact.md), and the result of decoding it.
struct CompactUnits {
  std::span<const WeightMap* const> maps;  // unconverted; together they have all units of the block
  BlockPlace place;                        // in the tensor
  const CompactTable* table = nullptr;
  std::span<const CompactTile> tiles;
  std::span<const std::byte> streams;  // of the tiles, on the host
  DigestTensorKey key;
  std::string name;  // for messages
  // Room for all changes; positions are in the tensor.
  std::span<std::uint64_t> positions;
  std::byte* values = nullptr;
  Digest change;  // the result: what the changes add to the digest
};

// A memory into which a road can fetch blocks, and which hashes them where they lie.
class ArrivalMemory {
 public:
  virtual ~ArrivalMemory() = default;
  // Memory for the blocks of one version, aligned to 256 bytes, with any content. It is reused for
  // the next version. Returns kNoSpace if there is not enough.
  [[nodiscard]] virtual Result<DeviceSpace> take(std::uint64_t bytes) = 0;
  // The xxh3-128 of each stretch of such memory.
  [[nodiscard]] virtual Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) = 0;
};

class WeightMemory {
 public:
  virtual ~WeightMemory() = default;
  [[nodiscard]] virtual MemoryKind kind() const = 0;
  // Prepares the parts for writing: reads their old values into `old_values`, which are on the
  // host. If a part has no such room, a memory that measures changes keeps the old values itself.
  // No two parts write the same unit. What the parts point to outlives the result.
  [[nodiscard]] virtual Result<std::unique_ptr<PlacedChanges>> place(
      std::span<const ChangePart> parts, unsigned threads) = 0;
  // Reads or writes units [origin, origin + count) of a tensor; values have the tensor's width.
  // read() is for maps that do not convert, and fills host memory; values of units that no map has
  // are undefined. write() writes the units that each map has; `values` lie where `from` says: on
  // the host, or in this memory.
  [[nodiscard]] virtual Status read(std::span<const WeightMap* const> maps, std::uint64_t origin,
                                    std::uint64_t count, std::byte* values) = 0;
  [[nodiscard]] virtual Status write(std::span<const WeightMap* const> maps, std::uint64_t origin,
                                     std::uint64_t count, const std::byte* values,
                                     MemoryKind from) = 0;
  // Compares `values` (on the host, in the tensor's width) with units [origin, origin + count) of a
  // tensor in each map. Sets `offsets` to the offsets from `origin` of the units that differ in any
  // map, ascending. If many differ, `offsets` may also have units that are equal. For maps that do
  // not convert. False if this memory leaves the comparison to the host.
  [[nodiscard]] virtual Result<bool> find_differing(std::span<const WeightMap* const> /*maps*/,
                                                    std::uint64_t /*origin*/,
                                                    std::uint32_t /*count*/,
                                                    const std::byte* /*values*/,
                                                    std::vector<std::uint32_t>& /*offsets*/) {
    return false;
  }
  // Waits until everything written has arrived.
  [[nodiscard]] virtual Status finish() = 0;
  // How many threads may call read() and write() at the same time, for different units.
  [[nodiscard]] virtual unsigned threads(unsigned wanted) const = 0;
  // Copies bytes of this memory to the host, unconverted.
  [[nodiscard]] virtual Status fetch(std::span<std::byte> to, const std::byte* from) = 0;
  // The sum of the digests of these bytes, computed by the processor that this memory belongs to.
  [[nodiscard]] virtual Result<Digest> digest(std::span<const TensorBytes> bytes,
                                              unsigned threads) = 0;
  // For each map, the digest of the units that it holds, converted back to the tensor's type. The
  // conversions must be reversible. Runs at memory speed.
  [[nodiscard]] virtual Result<std::vector<StridedSum>> sum_maps(std::span<const MapToSum> maps,
                                                                 unsigned threads) = 0;
  // Zeroed, aligned to 256 bytes, freed with the last reference.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual StagingMemory staging_memory() const = 0;
  // Whether place() measures the changes (PlacedChanges::part_changes()).
  [[nodiscard]] virtual bool measures_parts() const { return false; }
  // Null if deltas are decoded on the host.
  [[nodiscard]] virtual BucketMemory* buckets() = 0;
  // Null if blocks are brought to the host.
  [[nodiscard]] virtual ArrivalMemory* arrivals() { return nullptr; }
  // Decodes the blocks where the weights lie. False: nothing was decoded, and the host must read
  // the old units and decode. kMismatch, naming the tensor, if a block does not decode.
  [[nodiscard]] virtual Result<bool> decode_compact(std::span<CompactUnits> /*blocks*/) {
    return false;
  }
};

[[nodiscard]] std::shared_ptr<WeightMemory> make_host_memory();

// The map from the units of a block, in a tensor of `tensor_units`, to memory that holds only the
// block.
[[nodiscard]] Result<StridedMap> map_of(const BlockPlace& block, std::uint64_t tensor_units);

// As WeightMemory::digest(), for bytes that all lie on the host. `done` (may be empty) is called
// for every stretch that was read, from any thread.
[[nodiscard]] Digest digest_on_host(std::span<const TensorBytes> bytes, unsigned threads,
                                    const std::function<void(const TensorBytes&)>& done = {});

// Converts `count` values to the type of a map's target.
void convert_values(ValueCast cast, unsigned unit_bytes, const std::byte* values,
                    std::uint64_t count, std::byte* out);

// 0, 1, 2, ... below kMaxPieceUnits: the offsets of a piece that has every unit.
[[nodiscard]] std::span<const std::uint32_t> all_offsets();

}  // namespace driftless
