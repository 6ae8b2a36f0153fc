// SPDX-License-Identifier: Apache-2.0
// The operations on elements in host memory, and the list of their implementations.
//
// Every implementation gives the same results, bit for bit; reference/ is the specification. Units
// (core/dtype.h) are 1, 2, 4 or 8 bytes wide and are compared, moved and summed as integers: -0
// differs from +0, and NaN payloads count. Units and values may have any address. Nothing here
// allocates, fails or starts a thread. Calls with disjoint outputs may run at the same time.
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

// diff() may write this many units past its last result, so each output needs that much more room.
inline constexpr std::uint32_t kDiffSlackUnits = 64;
// The most units that one call of diff() compares.
inline constexpr std::uint32_t kMaxDiffUnits = 0x7fffffffU;

// The digest of units that are read through a map.
struct StridedSum {
  Digest digest;
  std::uint64_t foreign = 0;  // units to which no value converts; not in the digest

  friend bool operator==(const StridedSum&, const StridedSum&) = default;
};

// For each operation the type of its function, and the function.
struct HostKernels {
  std::string_view name;  // "reference", "cpu/portable", "cpu/neon", "cpu/avx2"

  // Writes the ascending offsets of the units that differ, the new values there and, unless
  // `old_values` is null, the old ones. Returns their number. `count` <= kMaxDiffUnits; each output
  // has room for count + kDiffSlackUnits.
  using Diff = std::uint32_t(const void* old_units, const void* new_units, std::uint32_t count,
                             unsigned unit_bytes, std::uint32_t* offsets, void* values,
                             void* old_values);
  Diff* diff;
  // diff() whose new side is converted by a narrowing cast (kF32ToBF16, kF32ToF16), as an optimizer
  // writes its weights: units have 2 bytes, new values 4. `values` receives the converted values. A
  // NaN always differs, because the bits that the optimizer writes for it are unknown.
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
  // target[i] = source[i] for every i with source[i] != sentinel. Returns the number of units
  // written, including those that had the same bits. Uses only the low 8 * unit_bytes bits of
  // `sentinel`. May store to all of target[0, count), rewriting kept units with their own bits, so
  // no other thread may write there meanwhile.
  using MaskedOverwrite = std::uint64_t(void* target, const void* source, std::uint64_t count,
                                        unsigned unit_bytes, std::uint64_t sentinel);
  MaskedOverwrite* masked_overwrite;
  // The contribution of `bytes`, at `byte_offset` of the tensor, to the tensor's digest. Any
  // offset, any length.
  using DigestOf = Digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
                          std::span<const std::byte> bytes);
  DigestOf* digest;
  // digest(after) - digest(before) if units origin + offsets[k] change from old_values to
  // new_values. Unless `units` (the address of unit `origin`) is null, it also stores the new
  // values in the same pass. That is cheaper than scatter() if the units, which hold the old
  // values, are in the cache. It does not prefetch units that are not.
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
  // values[k] = target[place] for every k whose unit origin + offsets[k] is in the map's source;
  // `place` is where the map puts it. Leaves other values unchanged. Units have `unit_bytes` on
  // both sides; offsets ascend. Returns the number of values read.
  using GatherStrided = std::uint64_t(const StridedMap& map, const void* target,
                                      unsigned unit_bytes, std::uint64_t origin,
                                      const std::uint32_t* offsets, std::uint64_t count,
                                      void* values);
  GatherStrided* gather_strided;
  // target[place] = values[k], converted, for the same k. `unit_bytes` is the width of the target;
  // values have source_bytes(cast, unit_bytes).
  using ScatterStrided = std::uint64_t(const StridedMap& map, void* target, unsigned unit_bytes,
                                       std::uint64_t origin, const std::uint32_t* offsets,
                                       std::uint64_t count, const void* values, ValueCast cast);
  ScatterStrided* scatter_strided;
  // The contribution of units [begin, end) of the tensor to its digest, as far as the map contains
  // them. Reads them from the map's target and converts them back. `cast` is reversible;
  // `unit_bytes` is the width of the target.
  using DigestStrided = StridedSum(const StridedMap& map, const void* target, unsigned unit_bytes,
                                   ValueCast cast, const DigestTensorKey& tensor,
                                   std::uint64_t begin, std::uint64_t end);
  DigestStrided* digest_strided;
  // Codes the changes of a tile of `compact` (docs/formats/compact.md). The tile has `units` units,
  // at most table.fields.tile_units(). Those at `offsets` (ascending) become `values`, which differ
  // from the old ones. Writes to `stream`, and returns the number of bytes: at most
  // max_compact_bytes(); 0 if nothing changes; kCompactNotInTable if the table lacks the class or
  // the step of a change.
  using CompactEncode = std::uint32_t(const CompactTable& table, const void* old_units,
                                      std::uint32_t units, const std::uint32_t* offsets,
                                      std::uint32_t count, const void* values, std::byte* stream);
  CompactEncode* compact_encode;
  // Decodes a tile from any bytes. False, with undefined outputs, unless the bytes are what
  // compact_encode() makes from `count` changes of these units. `count` <= units. Writes the old
  // values, too, unless `old_values` is null.
  using CompactDecode = bool(const CompactTable& table, const void* old_units, std::uint32_t units,
                             std::span<const std::byte> stream, std::uint32_t count,
                             std::uint32_t* offsets, void* values, void* old_values);
  CompactDecode* compact_decode;
};

inline constexpr std::uint32_t kCompactNotInTable = ~std::uint32_t{0};
// A gap takes 20 bits, and a step 8 and up to 31 more. An escape takes 6 bits, and a tile has at
// most one for each unit.
[[nodiscard]] constexpr std::uint32_t max_compact_bytes(const CompactFields& fields,
                                                        std::uint32_t count) {
  return 8 * count + fields.tile_units() + 64;
}

// All implementations that this processor can run: reference first, the fastest last.
[[nodiscard]] std::span<const HostKernels> all_host_kernels();
// The fastest implementation.
[[nodiscard]] const HostKernels& host_kernels();

}  // namespace driftless
