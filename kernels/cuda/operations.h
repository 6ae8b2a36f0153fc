// SPDX-License-Identifier: Apache-2.0
// The operations on elements in device memory: the GPU's peer of kernels/host_kernels.h, batched.
//
// A call queues work on the caller's stream and returns: nothing here waits, allocates, or looks at
// device memory from the host. Workspace belongs to the caller; functions say how much. `Stream` is
// a cudaStream_t (null: the default stream); pointers with `_dev` are memory of the stream's device
// (pinned host memory works, at the speed of the bus). Units are 1, 2, 4 or 8 bytes wide, compared
// and moved as integers; tensors may lie at any multiple of their unit, and may have more than 2^32
// of them. Tensors at multiples of 16 bytes are the fast case.
//
// No CUDA header is needed to use this one. Errors of CUDA come back as kIo, a lack of device
// memory as kNoSpace.
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

// Memory that a batch works in; both parts outlive it. `host` is pinned.
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
  kGaps,  // p[k] - p[k-1] - 1 with p[-1] = -1: uint16, or uint32 or uint64 in a tensor of which a
          // gap needs it
};

// Where one tensor's changes lie in the streams of positions and values.
struct StreamEntry {
  std::uint64_t count = 0;
  std::uint64_t value_begin = 0;     // units
  std::uint64_t position_begin = 0;  // bytes; a multiple of 2
  std::uint32_t position_bytes = 0;  // 2, 4 or 8
  std::uint32_t reserved = 0;
};

// How large a DiffBatch is.
struct DiffShape {
  std::uint32_t tensors = 0, tiles = 0;
  unsigned unit_bytes = 1;
  std::uint64_t max_changed = 0, scan_bytes = 0;
};

// Compares tensors of one width and writes what changed, for all of them, as two streams: ascending
// positions and new values, tensor after tensor without padding. The tensors' sizes are fixed when
// it is made; where they lie is said with every run. One run at a time: the next may be queued once
// results() of this one were read, or are not wanted.
class DiffBatch {
 public:
  struct Tensor {
    const std::byte* old_dev = nullptr;
    const std::byte* new_dev = nullptr;
    // A stretch of a tensor: the units before it, which positions count from the tensor's start;
    // and whether the whole has more than 2^31 units.
    std::uint64_t origin = 0;
    bool huge = false;
  };
  struct Results {
    std::uint64_t changed = 0;  // units, of all tensors; more than max_changed: nothing was written
    std::uint64_t position_bytes = 0;
    std::span<const StreamEntry> entries;  // one per tensor
  };

  // For up to `max_changed` changed units. Device memory per unit of it: its width and 2 bytes; per
  // 32 KiB of tensor: 36 bytes; per tensor: 68 bytes.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const std::uint64_t> units,
                                                    unsigned unit_bytes, std::uint64_t max_changed);
  [[nodiscard]] static Result<DiffBatch> make(std::span<const std::uint64_t> units,
                                              unsigned unit_bytes, std::uint64_t max_changed,
                                              const Workspace& workspace, Stream stream);

  // Room that the streams need, for `max_changed` units. Positions: 8 bytes each where tensors may
  // have more than 2^31 units, else 4 (gaps rarely take more than 2).
  [[nodiscard]] std::uint64_t max_position_bytes(bool huge) const {
    return shape_.max_changed * (huge ? 8 : 4);
  }
  [[nodiscard]] std::uint64_t max_value_bytes() const {
    return shape_.max_changed * shape_.unit_bytes;
  }

  // Outputs are aligned to 16 bytes.
  [[nodiscard]] Status run(std::span<const Tensor> tensors, PositionCoding coding,
                           std::byte* positions_dev, std::byte* values_dev, Stream stream);
  // Of the last run; once the stream has passed it.
  [[nodiscard]] Results results() const;

 private:
  DiffBatch() = default;

  DiffShape shape_;
  // In the workspace.
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

// Compares tensors of one width and keeps what differs as it is found, a tile of a tensor after the
// other: for who puts it in order later, on the host. The tensors' sizes are fixed when it is made.
class CaptureBatch {
 public:
  static constexpr std::uint64_t kTileBytes = 32768;  // of the old side; the last may be shorter

  struct Tensor {
    const std::byte* old_dev = nullptr;
    const std::byte* new_dev = nullptr;
  };
  // Where the changes of a tile lie in the slots, ascending. If that is past the slots' end, they
  // were only counted, like those of all tiles whose `base` is higher.
  struct Tile {
    std::uint64_t base = 0;
    std::uint32_t count = 0;
    std::uint16_t first = 0, last = 0;  // offsets of the first and the last change, if kept
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
  // `cast`: the new side is read through it, as HostKernels::diff_cast() does; `unit_bytes` are
  // those of the old side.
  [[nodiscard]] static Result<CaptureBatch> make(std::span<const std::uint64_t> units,
                                                 unsigned unit_bytes, ValueCast cast,
                                                 const Workspace& workspace, Stream stream);

  // The next run may be queued once the stream has passed this one.
  [[nodiscard]] Status run(std::span<const Tensor> tensors, const Slots& slots, Stream stream);
  // Of the last run, in device memory: how many units changed, kept or not; and all tiles, tensor
  // after tensor.
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

// Changes of tensors of one width, as two streams, ready to be worked with. make() queues the
// reading of all positions, so that who commits only scatters.
class Patch {
 public:
  struct Tensor {
    std::byte* data_dev = nullptr;  // of the tensor
    std::uint64_t units = 0;        // of the block, in which positions count
    StreamEntry entry;
    DigestTensorKey key;    // for digest_changes()
    BlockPlace place = {};  // of the block, in the tensor; by default its beginning
  };
  // 184 bytes per tensor, 12 per 2048 changes; on the host as much again.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const Tensor> tensors);
  // `positions_dev` stays where it is as long as the patch is used.
  [[nodiscard]] static Result<Patch> make(std::span<const Tensor> tensors, unsigned unit_bytes,
                                          PositionCoding coding, const std::byte* positions_dev,
                                          const Workspace& workspace, Stream stream);

  // Once the stream has passed make(): kCorrupt, naming the tensor, where positions do not ascend
  // or lie past its end. The operations below write nothing of such a tensor.
  [[nodiscard]] Status check() const;

  // data[position[k]] = values[k].
  [[nodiscard]] Status scatter(const std::byte* values_dev, Stream stream) const;
  // values[k] = data[position[k]].
  [[nodiscard]] Status gather(std::byte* values_dev, Stream stream) const;
  // What going from old to new values adds to the digest of each tensor: into `sums_dev`,
  // kDigestSums for one tensor after the other, which digest_from_sums() understands once they are
  // on the host. Zeroed first.
  [[nodiscard]] Status digest_changes(const std::byte* old_values_dev,
                                      const std::byte* new_values_dev, std::uint64_t* sums_dev,
                                      Stream stream) const;
  // The first and the last position of each tensor, in its block: two numbers for one after the
  // other. Of a tensor without changes they are not defined.
  [[nodiscard]] Status find_ends(std::uint64_t* ends_dev, Stream stream) const;

 private:
  friend class StridedPatch;
  Patch() = default;

  unsigned unit_bytes_ = 1;
  bool cut_ = false;  // a block is cut by columns
  PositionCoding coding_ = PositionCoding::kIndices;
  std::uint32_t tensors_ = 0;
  std::uint32_t chunks_ = 0;
  const std::byte* positions_dev_ = nullptr;
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

struct StridedWork;  // strided_patch.cuh

// Changes of tensors that live elsewhere, each where a map says: the GPU's gather_strided and
// scatter_strided, for many at once. All targets have units of one width.
class StridedPatch {
 public:
  static constexpr std::uint64_t kEveryUnit = ~std::uint64_t{0};

  // Changes that may lie in one map: units origin + offsets[offset_begin + k] of the tensor, for k
  // below count; with kEveryUnit, units origin + k. Or, where the patch was made of streams, the
  // positions of the tensor with the same number.
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
  // The positions of each part as they travel: Patch::Tensor::entry.count is the part's, and
  // data_dev is not used. What they point to stays as long as the patch is used.
  struct Streams {
    std::span<const Patch::Tensor> tensors;
    PositionCoding coding = PositionCoding::kGaps;
    const std::byte* positions_dev = nullptr;
  };
  // 272 bytes per part, 4 per 1024 changes; on the host as much again. With streams, also what a
  // Patch of them needs.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const Part> parts,
                                                    std::span<const Patch::Tensor> streams = {});
  // `offsets_dev` (may be null if no part uses it) stays as long as the patch is used.
  [[nodiscard]] static Result<StridedPatch> make(std::span<const Part> parts, unsigned unit_bytes,
                                                 const std::uint32_t* offsets_dev,
                                                 const Workspace& workspace, Stream stream);
  [[nodiscard]] static Result<StridedPatch> make(std::span<const Part> parts, unsigned unit_bytes,
                                                 const Streams& streams, const Workspace& workspace,
                                                 Stream stream);
  // Of the streams' positions; null if it was not made of streams.
  [[nodiscard]] const Patch* positions() const { return patch_ ? &*patch_ : nullptr; }

  // Old values, in the targets' width; those of changes outside of their map are left. In slices
  // that hold the GPU for well below a millisecond each.
  [[nodiscard]] Status gather_strided(std::byte* old_values_dev, Stream stream) const;
  // New values, converted; or, where `old` says so, old ones.
  [[nodiscard]] Status scatter_strided(const std::byte* values_dev, bool old, Stream stream) const;
  // In one launch: keeps what is there in the old values, writes the new ones, and reads them back.
  // differs_dev[0] becomes the least number of a part that was not what its old values said,
  // differs_dev[1] of one that does not hold what was written, else they stay; if it is null,
  // the old values need not have said anything, and nothing is read back.
  [[nodiscard]] Status exchange_strided(const std::byte* values_dev, std::byte* old_values_dev,
                                        std::uint32_t* differs_dev, Stream stream) const;
  // What going from the old to the new values adds to the digest of what each part's map holds, in
  // the tensor's own type: as Patch::digest_changes(), for one part after the other. Nothing of a
  // conversion that is not reversible. Zeroed first; in slices, as gather_strided().
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

// target[i] = source[i] wherever source[i] != sentinel (its low 8 * unit_bytes bits). Adds to
// *written_dev how many were.
[[nodiscard]] Status masked_overwrite(std::byte* target_dev, const std::byte* source_dev,
                                      std::uint64_t units, unsigned unit_bytes,
                                      std::uint64_t sentinel, std::uint64_t* written_dev,
                                      Stream stream);

// data[i] = the low 8 * unit_bytes bits of `pattern`: a tensor for masked_overwrite() begins so.
[[nodiscard]] Status fill_units(std::byte* data_dev, std::uint64_t units, unsigned unit_bytes,
                                std::uint64_t pattern, Stream stream);

// The digest of whole tensors, added up, or of stretches of them.
struct DigestPiece {
  const std::byte* bytes_dev = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t byte_offset = 0;  // in the tensor
  DigestTensorKey key;
};
inline constexpr std::size_t kDigestSums = 4;  // of 8 bytes, on the device
[[nodiscard]] WorkspaceSize digest_workspace_size(std::span<const DigestPiece> pieces);
// Into `sums_dev`, zeroed first.
[[nodiscard]] Status digest(std::span<const DigestPiece> pieces, const Workspace& workspace,
                            std::uint64_t* sums_dev, Stream stream);
// The digest of weights that lie as maps say: the GPU's digest_strided, for many at once. All
// targets have units of one width, and all parts one conversion, which is reversible.
struct DigestMap {
  StridedMap map;
  const std::byte* data_dev = nullptr;  // unit 0 of the map's target
  ValueCast cast = ValueCast::kNone;
  DigestTensorKey key;
  std::uint32_t slot = 0;  // whose sums it adds to
};
// Per slot: kDigestSums, then how many units are foreign (kernels/host_kernels.h).
inline constexpr std::size_t kDigestMapSums = kDigestSums + 1;
// Made once for the same parts, used for every sum of them. Works in the caller's workspace.
class MapSweep {
 public:
  // 264 bytes per part, 4 per 128 KiB of it.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const DigestMap> parts,
                                                    unsigned unit_bytes);
  [[nodiscard]] static Result<MapSweep> make(std::span<const DigestMap> parts, unsigned unit_bytes,
                                             const Workspace& workspace, Stream stream);
  // Adds to the slots in `sums_dev`. In launches that hold the GPU for less than 0.1 ms each.
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
