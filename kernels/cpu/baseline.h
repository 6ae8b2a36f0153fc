// SPDX-License-Identifier: Apache-2.0
// Host operations compiled for the baseline: those that move units; and those that call functions
// of a SIMD target: comparing converted values (diff()), digests (digest_sums(), digest_steps()),
// `compact` (hazard_sums()) and quantization (largest_bf16(), codes_of_bf16()). Contracts:
// host_kernels.h, quantize.h.
#pragma once

#include "kernels/cpu/operations.h"
#include "kernels/host_kernels.h"
#include "kernels/quantize.h"

namespace driftless::cpu {

HostKernels::Gather gather;
HostKernels::Scatter scatter;
HostKernels::GatherStrided gather_strided;
HostKernels::ScatterStrided scatter_strided;

using DiffUnits = decltype(&portable::diff);
using DigestSums = decltype(&portable::digest_sums);
using DigestSteps = decltype(&portable::digest_steps);
using HazardSums = decltype(&portable::hazard_sums);
using LargestBF16 = decltype(&portable::largest_bf16);
using CodesOfBF16 = decltype(&portable::codes_of_bf16);

std::uint32_t diff_cast(DiffUnits diff, const void* old_units, const void* new_values,
                        std::uint32_t count, ValueCast cast, std::uint32_t* offsets, void* values,
                        void* old_values);

Digest digest(DigestSums digest_sums, const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes);
Digest scatter_digested(DigestSteps digest_steps, const DigestTensorKey& tensor,
                        unsigned unit_bytes, std::uint64_t origin, const std::uint32_t* offsets,
                        std::uint64_t count, const void* old_values, const void* new_values,
                        void* units);
StridedSum digest_strided(DigestSums digest_sums, const StridedMap& map, const void* target,
                          unsigned unit_bytes, ValueCast cast, const DigestTensorKey& tensor,
                          std::uint64_t begin, std::uint64_t end);

std::uint32_t compact_encode(HazardSums hazard_sums, const CompactTable& table,
                             const void* old_units, std::uint32_t units,
                             const std::uint32_t* offsets, std::uint32_t count, const void* values,
                             std::byte* stream);
bool compact_decode(HazardSums hazard_sums, const CompactTable& table, const void* old_units,
                    std::uint32_t units, std::span<const std::byte> stream, std::uint32_t count,
                    std::uint32_t* offsets, void* values, void* old_values);

void quantize_part(LargestBF16 largest_bf16, CodesOfBF16 codes_of_bf16, QuantizeRule rule,
                   const MatrixPart& part, const void* weights, std::uint16_t* largest,
                   void* codes);
Quantizer::Groups quantize_groups;

}  // namespace driftless::cpu
