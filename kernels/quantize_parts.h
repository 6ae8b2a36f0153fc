// SPDX-License-Identifier: Apache-2.0
// Quantizes parts of many matrices in host memory together.
#pragma once

#include "kernels/quantize.h"

namespace driftless {

// A part of a matrix, and where its results go; as in Quantizer::part.
struct PartToQuantize {
  MatrixPart part;
  const std::byte* weights = nullptr;
  std::uint16_t* largest = nullptr;
  std::byte* codes = nullptr;
};

// Quantizer::part of all parts on several threads. The threads start once and divide the rows of
// blocks of all parts, so they are all busy for small matrices, too.
[[nodiscard]] Status quantize_parts(const Quantizer& with, QuantizeRule rule,
                                    std::span<const PartToQuantize> parts, unsigned threads);

// Writes the scales (float32) of blocks with these largest magnitudes.
void write_fp8_scales(QuantizeRule rule, std::span<const std::uint16_t> largest, std::byte* scales);

}  // namespace driftless
