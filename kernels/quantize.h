// SPDX-License-Identifier: Apache-2.0
// Quantization of matrices in host memory, by the rules of core/quantize_rule.h.
//
// Every implementation gives the same bits; reference/ is the specification. Nothing here allocates
// or fails; calls on disjoint outputs may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/quantize_rule.h"

namespace driftless {

struct Quantizer {
  std::string_view name;  // as HostKernels::name

  // Of a contiguous matrix of bfloat16: a code for each weight, and the scales (float32) of its
  // blocks, row after row. All three may lie at any address.
  using Fp8 = void(QuantizeRule rule, const void* weights, std::uint64_t rows,
                   std::uint64_t columns, void* codes, void* scales);
  Fp8* fp8;
};

// All that this processor can run, as all_host_kernels(), and the fastest.
[[nodiscard]] std::span<const Quantizer> all_quantizers();
[[nodiscard]] const Quantizer& quantizer();

// Quantizer::fp8, spread over threads.
[[nodiscard]] Status quantize_fp8(const Quantizer& with, QuantizeRule rule,
                                  const std::byte* weights, std::uint64_t rows,
                                  std::uint64_t columns, unsigned threads, std::byte* codes,
                                  std::byte* scales);

}  // namespace driftless
