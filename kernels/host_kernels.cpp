// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_kernels.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/baseline.h"
#include "kernels/reference/operations.h"

namespace driftless {
namespace {

constexpr HostKernels kReference{"reference",
                                 reference::diff,
                                 reference::diff_cast,
                                 reference::gather,
                                 reference::scatter,
                                 reference::masked_overwrite,
                                 reference::digest,
                                 reference::scatter_digested,
                                 reference::gather_strided,
                                 reference::scatter_strided,
                                 reference::digest_strided,
                                 reference::compact_encode,
                                 reference::compact_decode};

template <cpu::DiffUnits kDiff>
std::uint32_t cpu_diff_cast(const void* old_units, const void* new_values, std::uint32_t count,
                            ValueCast cast, std::uint32_t* offsets, void* values,
                            void* old_values) {
  return cpu::diff_cast(kDiff, old_units, new_values, count, cast, offsets, values, old_values);
}

template <cpu::DigestSums kSums>
Digest cpu_digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
                  std::span<const std::byte> bytes) {
  return cpu::digest(kSums, tensor, byte_offset, bytes);
}

template <cpu::DigestSteps kSteps>
Digest cpu_scatter_digested(const DigestTensorKey& tensor, unsigned unit_bytes,
                            std::uint64_t origin, const std::uint32_t* offsets, std::uint64_t count,
                            const void* old_values, const void* new_values, void* units) {
  return cpu::scatter_digested(kSteps, tensor, unit_bytes, origin, offsets, count, old_values,
                               new_values, units);
}

template <cpu::DigestSums kSums>
StridedSum cpu_digest_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                              ValueCast cast, const DigestTensorKey& tensor, std::uint64_t begin,
                              std::uint64_t end) {
  return cpu::digest_strided(kSums, map, target, unit_bytes, cast, tensor, begin, end);
}

template <cpu::HazardSums kSums>
std::uint32_t cpu_compact_encode(const CompactTable& table, const void* old_units,
                                 std::uint32_t units, const std::uint32_t* offsets,
                                 std::uint32_t count, const void* values, std::byte* stream) {
  return cpu::compact_encode(kSums, table, old_units, units, offsets, count, values, stream);
}

template <cpu::HazardSums kSums>
bool cpu_compact_decode(const CompactTable& table, const void* old_units, std::uint32_t units,
                        std::span<const std::byte> stream, std::uint32_t count,
                        std::uint32_t* offsets, void* values, void* old_values) {
  return cpu::compact_decode(kSums, table, old_units, units, stream, count, offsets, values,
                             old_values);
}

#define DRIFTLESS_CPU_KERNELS(target)                                                              \
  HostKernels {                                                                                    \
    "cpu/" #target, cpu::target::diff, cpu_diff_cast<cpu::target::diff>, cpu::gather,              \
        cpu::scatter, cpu::target::masked_overwrite, cpu_digest<cpu::target::digest_sums>,         \
        cpu_scatter_digested<cpu::target::digest_steps>, cpu::gather_strided,                      \
        cpu::scatter_strided, cpu_digest_strided<cpu::target::digest_sums>,                        \
        cpu_compact_encode<cpu::target::hazard_sums>, cpu_compact_decode<cpu::target::hazard_sums> \
  }

template <cpu::LargestBF16 kLargest, cpu::CodesOfBF16 kCodes>
void cpu_quantize_part(QuantizeRule rule, const MatrixPart& part, const void* weights,
                       std::uint16_t* largest, void* codes) {
  cpu::quantize_part(kLargest, kCodes, rule, part, weights, largest, codes);
}

struct Implementation {
  HostKernels kernels;
  Quantizer quantizer;
};

#define DRIFTLESS_CPU(target)                                                                   \
  Implementation {                                                                              \
    DRIFTLESS_CPU_KERNELS(target), {                                                            \
      "cpu/" #target, cpu_quantize_part<cpu::target::largest_bf16, cpu::target::codes_of_bf16>, \
          cpu::quantize_groups                                                                  \
    }                                                                                           \
  }

std::vector<Implementation> implementations() {
  std::vector<Implementation> list{
      {kReference, {"reference", reference::quantize_part, reference::quantize_groups}},
      DRIFTLESS_CPU(portable)};
#if defined(__aarch64__)
  list.push_back(DRIFTLESS_CPU(neon));
#elif defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) list.push_back(DRIFTLESS_CPU(avx2));
#endif
  return list;
}

template <auto kMember>
auto column() {
  using Column = std::remove_cvref_t<decltype(std::declval<Implementation>().*kMember)>;
  std::vector<Column> list;
  for (const Implementation& each : implementations()) list.push_back(each.*kMember);
  return list;
}

}  // namespace

std::span<const HostKernels> all_host_kernels() {
  static const std::vector<HostKernels> list = column<&Implementation::kernels>();
  return list;
}

std::span<const Quantizer> all_quantizers() {
  static const std::vector<Quantizer> list = column<&Implementation::quantizer>();
  return list;
}

const HostKernels& host_kernels() { return all_host_kernels().back(); }

const Quantizer& quantizer() { return all_quantizers().back(); }

}  // namespace driftless
