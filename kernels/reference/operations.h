// SPDX-License-Identifier: Apache-2.0
// The specification: every operation of HostKernels as a plain loop. Contracts: host_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/digest.h"
#include "kernels/strided_map.h"
#include "kernels/value_cast.h"

namespace driftless::reference {

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values);
void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values);
void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values);
std::uint64_t masked_overwrite(void* target, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel);
Digest digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes);
Digest digest_change(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                     const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                     const void* new_values);
Digest scatter_digested(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                        const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                        const void* new_values, void* units);
std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values);
std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast);

}  // namespace driftless::reference
