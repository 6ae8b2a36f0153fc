// SPDX-License-Identifier: Apache-2.0
// The operations on elements in device memory: the GPU version of kernels/host_kernels.h, in
// batches.
//
// A call queues work on the caller's stream and returns: nothing here waits, allocates, or accesses
// device memory from the host. The caller owns the workspace; functions return its size. `Stream`
// is a cudaStream_t (null: the default stream). Pointers with `_dev` are memory of the stream's
// device (pinned host memory works, at the speed of the bus). Units are 1, 2, 4 or 8 bytes wide,
// and are compared and moved as integers. Tensors may be at any multiple of their unit, and may
// have more than 2^32 units; tensors at multiples of 16 bytes are the fast case.
//
// This header needs no CUDA header. CUDA errors are returned as kIo, a lack of device memory as
// kNoSpace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/block_place.h"
#include "core/digest.h"
#include "core/status.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless::cuda {

using Stream = void*;

// The memory of a batch; both parts must outlive it. `host` is pinned.
struct Workspace {
  std::byte* dev = nullptr;
  std::uint64_t dev_bytes = 0;
  std::byte* host = nullptr;
  std::uint64_t host_bytes = 0;
};
struct WorkspaceSize {
  std::uint64_t dev_bytes = 0;
  std::uint64_t host_bytes = 0;
};

enum class PositionCoding : unsigned char {
  kIndices,  // absolute: int32, or int64 in a tensor of more than 2^31 units
  // p[k] - p[k-1] - 1 with p[-1] = -1: uint16, or uint32 or uint64 in a tensor with larger gaps.
  kGaps,
};

// The place of one tensor's changes in the streams of positions and values.
struct StreamEntry {
  std::uint64_t count = 0;
  std::uint64_t value_begin = 0;     // units
  std::uint64_t position_begin = 0;  // bytes; a multiple of 2
  std::uint32_t position_bytes = 0;  // 2, 4 or 8
  std::uint32_t reserved = 0;
};

// The size of a DiffBatch.
struct DiffShape {
  std::uint32_t tensors = 0, tiles = 0;
  unsigned unit_bytes = 1;
  std::uint64_t max_changed = 0, scan_bytes = 0;
};

// Compares tensors of one width and writes the changes of all of them as two streams: ascending
// positions and new values, tensor after tensor without padding. make() fixes the sizes of the
// tensors; each run() takes their addresses. One run at a time: the next may be queued after
// results() of this one were read, or if they are not wanted.
class DiffBatch {
 public:
  struct Tensor {
    const std::byte* old_dev = nullptr;
    const std::byte* new_dev = nullptr;
    // For a stretch of a tensor: the number of units before it (positions count from the tensor's
    // start), and whether the whole tensor has more than 2^31 units.
    std::uint64_t origin = 0;
    bool huge = false;
  };
  struct Results {
    std::uint64_t changed = 0;  // units, over all tensors; above max_changed: nothing was written
    std::uint64_t position_bytes = 0;
    std::span<const StreamEntry> entries;  // one per tensor
  };

  // For up to `max_changed` changed units. Device memory per such unit: its width and 2 bytes; per
  // 32 KiB of tensor: 36 bytes; per tensor: 68 bytes.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const std::uint64_t> units,
                                                    unsigned unit_bytes, std::uint64_t max_changed);
  [[nodiscard]] static Result<DiffBatch> make(std::span<const std::uint64_t> units,
                                              unsigned unit_bytes, std::uint64_t max_changed,
                                              const Workspace& workspace, Stream stream);

  // The size of the streams for `max_changed` units. Positions: 8 bytes each if tensors may have
  // more than 2^31 units, otherwise 4 (gaps rarely take more than 2).
  [[nodiscard]] std::uint64_t max_position_bytes(bool huge) const {
    return shape_.max_changed * (huge ? 8 : 4);
  }
  [[nodiscard]] std::uint64_t max_value_bytes() const {
    return shape_.max_changed * shape_.unit_bytes;
  }

  // Outputs must be aligned to 16 bytes.
  [[nodiscard]] Status run(std::span<const Tensor> tensors, PositionCoding coding,
                           std::byte* positions_dev, std::byte* values_dev, Stream stream);
  // The results of the last run, once the stream has passed it.
  [[nodiscard]] Results results() const;

 private:
  DiffBatch() = default;

  DiffShape shape_;
  // In the workspace.
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

// Compares tensors of one width and stores the changes in the order in which tiles find them, for a
// caller that orders them later on the host. make() fixes the sizes of the tensors.
class CaptureBatch {
 public:
  static constexpr std::uint64_t kTileBytes = 32768;  // of the old side; the last may be shorter

  struct Tensor {
    const std::byte* old_dev = nullptr;
    const std::byte* new_dev = nullptr;
  };
  // A tile's changes are in slots [base, base + count), ascending. If this range passes the end of
  // the slots, the changes of this tile were only counted, not stored, and likewise those of every
  // tile with a higher `base`.
  struct Tile {
    std::uint64_t base = 0;
    std::uint32_t count = 0;
    std::uint16_t first = 0, last = 0;  // offsets of the first and the last change, if stored
  };
  // Offsets in the tile, in units; new values, converted; old values.
  struct Slots {
    std::uint16_t* offsets_dev = nullptr;
    std::byte* values_dev = nullptr;
    std::byte* old_values_dev = nullptr;
    std::uint64_t count = 0;
  };

  // Device memory per 32 KiB of tensor: 20 bytes; per tensor: 40 bytes.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const std::uint64_t> units,
                                                    unsigned unit_bytes);
  // `cast` converts the new side, as HostKernels::diff_cast() does; `unit_bytes` is the width of
  // the old side.
  [[nodiscard]] static Result<CaptureBatch> make(std::span<const std::uint64_t> units,
                                                 unsigned unit_bytes, ValueCast cast,
                                                 const Workspace& workspace, Stream stream);

  // Queues a run. The next one may be queued once the stream has passed this one.
  [[nodiscard]] Status run(std::span<const Tensor> tensors, const Slots& slots, Stream stream);
  // Results of the last run, in device memory: the number of changed units, stored or not; and all
  // tiles, tensor after tensor.
  [[nodiscard]] const std::uint64_t* changed_dev() const;
  [[nodiscard]] const Tile* tiles_dev() const;
  [[nodiscard]] std::uint32_t tiles() const { return tiles_; }

 private:
  CaptureBatch() = default;

  std::uint32_t tensors_ = 0, tiles_ = 0;
  unsigned unit_bytes_ = 1;
  ValueCast cast_ = ValueCast::kNone;
  // In the workspace.
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

// Changes of tensors of one width, as two streams, prepared for use. make() queues the decoding of
// all positions, so that a commit only scatters.
class Patch {
 public:
  struct Tensor {
    std::byte* data_dev = nullptr;  // of the tensor
    std::uint64_t units = 0;        // of the block; positions count inside it
    StreamEntry entry;
    DigestTensorKey key;    // for digest_changes()
    BlockPlace place = {};  // of the block in the tensor; by default the tensor's beginning
  };
  // On the device: 200 bytes per tensor, 12 per 1024 changes. On the host: 200 per tensor, 4 per
  // 1024 changes.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const Tensor> tensors);
  // `positions_dev` must stay valid as long as the patch is used.
  [[nodiscard]] static Result<Patch> make(std::span<const Tensor> tensors, unsigned unit_bytes,
                                          PositionCoding coding, const std::byte* positions_dev,
                                          const Workspace& workspace, Stream stream);

  // Call it once the stream has passed make(). kCorrupt, naming the tensor, if positions do not
  // ascend or lie past its end. The operations below write nothing for such a tensor.
  [[nodiscard]] Status check() const;
  // The number of the first such tensor, if there is one; as check().
  [[nodiscard]] std::optional<std::size_t> first_bad() const;

  // data[position[k]] = values[k].
  [[nodiscard]] Status scatter(const std::byte* values_dev, Stream stream) const;
  // values[k] = data[position[k]].
  [[nodiscard]] Status gather(std::byte* values_dev, Stream stream) const;
  // For each tensor, the digest of the new values minus that of the old ones. Zeroes `sums_dev`
  // first, and adds kDigestSums numbers for each tensor there; digest_from_sums() reads them once
  // they are on the host.
  [[nodiscard]] Status digest_changes(const std::byte* old_values_dev,
                                      const std::byte* new_values_dev, std::uint64_t* sums_dev,
                                      Stream stream) const;
  // The first and the last position of each tensor, in its block: two numbers per tensor. Undefined
  // for a tensor without changes.
  [[nodiscard]] Status find_ends(std::uint64_t* ends_dev, Stream stream) const;

 private:
  friend class StridedPatch;
  Patch() = default;

  unsigned unit_bytes_ = 1;
  bool cut_ = false;  // a block contains only some columns
  PositionCoding coding_ = PositionCoding::kIndices;
  std::uint32_t tensors_ = 0;
  std::uint32_t chunks_ = 0;
  const std::byte* positions_dev_ = nullptr;
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

struct StridedWork;  // strided_patch.cuh

// Changes of tensors whose weights a map places elsewhere: the GPU version of gather_strided and
// scatter_strided, for many tensors at once. All targets have units of one width.
class StridedPatch {
 public:
  static constexpr std::uint64_t kEveryUnit = ~std::uint64_t{0};

  // `count` changes of a tensor; those that are not in the map's source are skipped. Change k is of
  // unit origin + offsets[offset_begin + k], or of unit origin + k if offset_begin is kEveryUnit.
  // If the patch was made from streams, the stream with this part's number gives the positions.
  struct Part {
    StridedMap map;
    std::byte* data_dev = nullptr;  // unit 0 of the map's target
    ValueCast cast = ValueCast::kNone;
    std::uint64_t origin = 0;
    std::uint64_t count = 0;
    std::uint64_t offset_begin = kEveryUnit;
    std::uint64_t value_begin = 0;  // bytes, in the new values; a multiple of their width
    std::uint64_t old_begin = 0;    // units, in the old values
    DigestTensorKey key = {};       // for digest_changes()
  };
  // The encoded positions of the parts: tensors[i] describes those of part i. Its entry.count is
  // the part's `count`; its data_dev is not used. `positions_dev` must stay valid as long as the
  // patch is used.
  struct Streams {
    std::span<const Patch::Tensor> tensors;
    PositionCoding coding = PositionCoding::kGaps;
    const std::byte* positions_dev = nullptr;
  };
  // 272 bytes per part, 4 per 1024 changes; the same on the host. With streams, also the workspace
  // of a Patch of them.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const Part> parts,
                                                    std::span<const Patch::Tensor> streams = {});
  // `offsets_dev` (null if no part uses it) must stay valid as long as the patch is used.
  [[nodiscard]] static Result<StridedPatch> make(std::span<const Part> parts, unsigned unit_bytes,
                                                 const std::uint32_t* offsets_dev,
                                                 const Workspace& workspace, Stream stream);
  [[nodiscard]] static Result<StridedPatch> make(std::span<const Part> parts, unsigned unit_bytes,
                                                 const Streams& streams, const Workspace& workspace,
                                                 Stream stream);
  // The Patch that holds the streams' positions; null if this was not made from streams.
  [[nodiscard]] const Patch* positions() const { return patch_ ? &*patch_ : nullptr; }

  // Reads the old values, in the targets' width; leaves those of changes outside of their map
  // unchanged. Runs in slices that occupy the GPU for well below a millisecond each.
  [[nodiscard]] Status gather_strided(std::byte* old_values_dev, Stream stream) const;
  // Writes the new values, converted; with `old`, the old values.
  [[nodiscard]] Status scatter_strided(const std::byte* values_dev, bool old, Stream stream) const;
  // In one launch: compares the targets with the old values, stores the current content as old
  // values, writes the new values, and reads them back. differs_dev[0] becomes the lowest number of
  // a part whose content differed from its old values; differs_dev[1] the lowest number of a part
  // that reads back other values than were written. Without a difference they do not change. With
  // null `differs_dev` it neither compares nor reads back.
  [[nodiscard]] Status exchange_strided(const std::byte* values_dev, std::byte* old_values_dev,
                                        std::uint32_t* differs_dev, Stream stream) const;
  // For each part, the digest of the new values minus that of the old ones, over the units in the
  // part's map and in the tensor's own type; the output is that of Patch::digest_changes(). Adds
  // nothing for a conversion that is not reversible. Zeroes the sums first; runs in slices, as
  // gather_strided().
  [[nodiscard]] Status digest_changes(const std::byte* old_values_dev, const std::byte* values_dev,
                                      std::uint64_t* sums_dev, Stream stream) const;

 private:
  StridedPatch() = default;
  [[nodiscard]] StridedWork work() const;

  unsigned unit_bytes_ = 1;
  std::uint32_t parts_ = 0;
  std::uint32_t chunks_ = 0;
  const std::uint32_t* offsets_dev_ = nullptr;
  std::optional<Patch> patch_;
  std::byte* dev_ = nullptr;
};

// target[i] = source[i] for every i with source[i] != sentinel (its low 8 * unit_bytes bits). Adds
// the number of written units to *written_dev.
[[nodiscard]] Status masked_overwrite(std::byte* target_dev, const std::byte* source_dev,
                                      std::uint64_t units, unsigned unit_bytes,
                                      std::uint64_t sentinel, std::uint64_t* written_dev,
                                      Stream stream);

// data[i] = the low 8 * unit_bytes bits of `pattern`. It prepares a tensor for masked_overwrite().
[[nodiscard]] Status fill_units(std::byte* data_dev, std::uint64_t units, unsigned unit_bytes,
                                std::uint64_t pattern, Stream stream);

// A tensor, or a stretch of one, whose digest is part of a sum.
struct DigestPiece {
  const std::byte* bytes_dev = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t byte_offset = 0;  // in the tensor
  DigestTensorKey key;
};
inline constexpr std::size_t kDigestSums = 4;  // numbers of 8 bytes, on the device
[[nodiscard]] WorkspaceSize digest_workspace_size(std::span<const DigestPiece> pieces);
// Writes the sums to `sums_dev`, zeroed first.
[[nodiscard]] Status digest(std::span<const DigestPiece> pieces, const Workspace& workspace,
                            std::uint64_t* sums_dev, Stream stream);
// The digest of weights that maps place: the GPU version of digest_strided, for many maps at once.
// All targets have units of one width; all parts have the same, reversible conversion.
struct DigestMap {
  StridedMap map;
  const std::byte* data_dev = nullptr;  // unit 0 of the map's target
  ValueCast cast = ValueCast::kNone;
  DigestTensorKey key;
  std::uint32_t slot = 0;  // the slot to whose sums it adds
};
// Per slot: kDigestSums numbers, then the number of foreign units (kernels/host_kernels.h).
inline constexpr std::size_t kDigestMapSums = kDigestSums + 1;
// Made once for a list of parts, and used for every sum of them. Works in the caller's workspace.
class MapSweep {
 public:
  // 264 bytes per part, 4 per 128 KiB of it.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const DigestMap> parts,
                                                    unsigned unit_bytes);
  [[nodiscard]] static Result<MapSweep> make(std::span<const DigestMap> parts, unsigned unit_bytes,
                                             const Workspace& workspace, Stream stream);
  // Adds to the slots in `sums_dev`. Each launch occupies the GPU for less than 0.1 ms.
  [[nodiscard]] Status sum(std::uint64_t* sums_dev, Stream stream) const;

 private:
  MapSweep() = default;

  unsigned unit_bytes_ = 1;
  ValueCast cast_ = ValueCast::kNone;
  std::uint32_t parts_ = 0;
  std::uint32_t spans_ = 0;
  std::byte* dev_ = nullptr;
};
[[nodiscard]] Digest digest_from_sums(std::span<const std::uint64_t, kDigestSums> sums);

}  // namespace driftless::cuda
