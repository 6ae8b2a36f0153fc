// SPDX-License-Identifier: Apache-2.0
// The operations on elements in host memory, and the list of their implementations.
//
// Every implementation gives the same results, bit for bit; reference/ is the specification. Units
// (core/dtype.h) are 1, 2, 4 or 8 bytes wide and are compared, moved and summed as integers: -0
// differs from +0, NaN payloads count. Units and values may lie at any address. Nothing here
// allocates, fails or starts a thread; calls on disjoint outputs may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/compact.h"
#include "core/digest.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless {

// diff() may write up to this many units past its last result, so outputs need that much room.
inline constexpr std::uint32_t kDiffSlackUnits = 64;
// The most units that one call of diff() compares.
inline constexpr std::uint32_t kMaxDiffUnits = 0x7fffffffU;

// The digest of units read through a map.
struct StridedSum {
  Digest digest;
  std::uint64_t foreign =
      0;  // units that the map's conversion makes of no value; not in the digest

  friend bool operator==(const StridedSum&, const StridedSum&) = default;
};

// For each operation the type of its functions, and the function.
struct HostKernels {
  std::string_view name;  // "reference", "cpu/portable", "cpu/neon", "cpu/avx2"

  // Writes the ascending offsets of the units that differ, the new bits at them and, unless
  // `old_values` is null, the old ones; returns how many. `count` <= kMaxDiffUnits; the outputs
  // have room for count + kDiffSlackUnits each.
  using Diff = std::uint32_t(const void* old_units, const void* new_units, std::uint32_t count,
                             unsigned unit_bytes, std::uint32_t* offsets, void* values,
                             void* old_values);
  Diff* diff;
  // diff() whose new side is read through a conversion that narrows (kF32ToBF16, kF32ToF16), as an
  // optimizer writes its weights: units of 2 bytes, new values of 4. `values` get what is
  // converted. A NaN always differs, since nobody can tell which bits the optimizer writes for it.
  using DiffCast = std::uint32_t(const void* old_units, const void* new_values, std::uint32_t count,
                                 ValueCast cast, std::uint32_t* offsets, void* values,
                                 void* old_values);
  DiffCast* diff_cast;
  // values[k] = units[offsets[k]]
  using Gather = void(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
                      std::uint64_t count, void* values);
  Gather* gather;
  // units[offsets[k]] = values[k]; offsets ascend strictly.
  using Scatter = void(void* units, unsigned unit_bytes, const std::uint32_t* offsets,
                       std::uint64_t count, const void* values);
  Scatter* scatter;
  // target[i] = source[i] wherever source[i] != sentinel; returns how many were written (the same
  // bits count as written). Only the low 8 * unit_bytes bits of `sentinel` are looked at. All of
  // target[0, count) may be stored to, kept units with their own bits: no other thread may write
  // there meanwhile.
  using MaskedOverwrite = std::uint64_t(void* target, const void* source, std::uint64_t count,
                                        unsigned unit_bytes, std::uint64_t sentinel);
  MaskedOverwrite* masked_overwrite;
  // The part of the tensor's digest that `bytes`, lying at `byte_offset` of the tensor,
  // contributes. Any offset, any length.
  using DigestOf = Digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
                          std::span<const std::byte> bytes);
  DigestOf* digest;
  // digest(after) - digest(before) if units origin + offsets[k] go from old_values to new_values.
  // Unless `units`, where unit `origin` lies, is null, it takes the new values in the same pass:
  // cheaper than scatter() if the units, which are the old values, are in the cache; nothing is
  // fetched ahead if they are not.
  using ScatterDigested = Digest(const DigestTensorKey& tensor, unsigned unit_bytes,
                                 std::uint64_t origin, const std::uint32_t* offsets,
                                 std::uint64_t count, const void* old_values,
                                 const void* new_values, void* units);
  ScatterDigested* scatter_digested;
  [[nodiscard]] Digest digest_change(const DigestTensorKey& tensor, unsigned unit_bytes,
                                     std::uint64_t origin, const std::uint32_t* offsets,
                                     std::uint64_t count, const void* old_values,
                                     const void* new_values) const {
    return scatter_digested(tensor, unit_bytes, origin, offsets, count, old_values, new_values,
                            nullptr);
  }
  // For every k whose unit origin + offsets[k] is in the map's source: values[k] = target[its
  // place]. Other values are left as they are. Units of `unit_bytes` on both sides; offsets ascend.
  // Returns for how many.
  using GatherStrided = std::uint64_t(const StridedMap& map, const void* target,
                                      unsigned unit_bytes, std::uint64_t origin,
                                      const std::uint32_t* offsets, std::uint64_t count,
                                      void* values);
  GatherStrided* gather_strided;
  // target[its place] = values[k], converted, for the same ones. `unit_bytes` is of the target;
  // values have source_bytes(cast, unit_bytes).
  using ScatterStrided = std::uint64_t(const StridedMap& map, void* target, unsigned unit_bytes,
                                       std::uint64_t origin, const std::uint32_t* offsets,
                                       std::uint64_t count, const void* values, ValueCast cast);
  ScatterStrided* scatter_strided;
  // What units [begin, end) of the tensor contribute to its digest, as far as the map has them,
  // read from the map's target and converted back. `cast` is reversible; `unit_bytes` is of the
  // target.
  using DigestStrided = StridedSum(const StridedMap& map, const void* target, unsigned unit_bytes,
                                   ValueCast cast, const DigestTensorKey& tensor,
                                   std::uint64_t begin, std::uint64_t end);
  DigestStrided* digest_strided;
  // Codes the changes of a tile of `compact` (docs/formats/compact.md): of the `units` <=
  // table.fields.tile_units() old ones, those at `offsets` (ascending) become `values`, each
  // another one. Returns the stream's bytes, at most max_compact_bytes(), in `stream`; 0 if nothing
  // changes, kCompactNotInTable if the table has not the class or the step of a change.
  using CompactEncode = std::uint32_t(const CompactTable& table, const void* old_units,
                                      std::uint32_t units, const std::uint32_t* offsets,
                                      std::uint32_t count, const void* values, std::byte* stream);
  CompactEncode* compact_encode;
  // The way back, from any bytes: false, with outputs of no meaning, unless they are what
  // compact_encode() makes of `count` changes of these units. `count` <= units. Writes the old
  // values, too, unless `old_values` is null.
  using CompactDecode = bool(const CompactTable& table, const void* old_units, std::uint32_t units,
                             std::span<const std::byte> stream, std::uint32_t count,
                             std::uint32_t* offsets, void* values, void* old_values);
  CompactDecode* compact_decode;
};

inline constexpr std::uint32_t kCompactNotInTable = ~std::uint32_t{0};
// A gap takes 20 bits, a step 8 and up to 31 more, and so do the turns of the axis together: one of
// 6 bits for each unit at most.
[[nodiscard]] constexpr std::uint32_t max_compact_bytes(const CompactFields& fields,
                                                        std::uint32_t count) {
  return 8 * count + fields.tile_units() + 64;
}

// All that this processor can run: reference first, the fastest last.
[[nodiscard]] std::span<const HostKernels> all_host_kernels();
// The fastest.
[[nodiscard]] const HostKernels& host_kernels();

}  // namespace driftless
