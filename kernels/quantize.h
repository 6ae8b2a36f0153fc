// SPDX-License-Identifier: Apache-2.0
// Quantization of matrices in host memory, by the rules of core/quantize_rule.h.
//
// Every implementation gives the same bits; reference/ is the specification. Nothing here allocates
// or fails, but for quantize_fp8(); calls on disjoint outputs may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/quantize_rule.h"

namespace driftless {

// Rows and columns of a matrix. Rows lie `stride` weights apart. The first weight lies `row` and
// `column` behind the corner of the block that it is in; both are below kQuantizeBlock.
struct MatrixPart {
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t stride = 0;
  std::uint64_t row = 0, column = 0;

  // Blocks that it touches.
  [[nodiscard]] constexpr std::uint64_t blocks_high() const {
    return rows == 0 ? 0 : quantize_blocks(row + rows);
  }
  [[nodiscard]] constexpr std::uint64_t blocks_wide() const {
    return columns == 0 ? 0 : quantize_blocks(column + columns);
  }
};

struct Quantizer {
  std::string_view name;  // as HostKernels::name

  // Of bfloat16: a code for each weight of the part, at the same place as the weight. `largest`
  // (bits of bfloat16) has an entry for each block that the part touches, row after row: what is
  // known of the largest magnitude there, from elsewhere, perhaps 0; afterwards that of the part,
  // too. `codes` may be null: then only that. Weights and codes may lie at any address.
  using Part = void(QuantizeRule rule, const MatrixPart& part, const void* weights,
                    std::uint16_t* largest, void* codes);
  Part* part;

  // By the rule int4_group: rows of `columns` weights, `stride` apart. Each group of `group`
  // (is_int4_group()) weights of a row has a scale; `group` divides `columns`. `packed`: half a
  // byte for each weight, row after row; `scales`: bfloat16. All three may lie at any address.
  using Groups = void(unsigned group, std::uint64_t rows, std::uint64_t columns,
                      std::uint64_t stride, const void* weights, void* packed, void* scales);
  Groups* groups;
};

// All that this processor can run, as all_host_kernels(), and the fastest.
[[nodiscard]] std::span<const Quantizer> all_quantizers();
[[nodiscard]] const Quantizer& quantizer();

// Of one weight and one block, as all_quantizers() have it.
[[nodiscard]] std::uint8_t fp8_code(QuantizeRule rule, std::uint16_t largest, std::uint16_t weight);
[[nodiscard]] float fp8_scale(QuantizeRule rule, std::uint16_t largest);
// fp8_code() of many weights of a block.
class Fp8Coder {
 public:
  Fp8Coder(QuantizeRule rule, std::uint16_t largest);
  [[nodiscard]] std::uint8_t code(std::uint16_t weight) const;

 private:
  float factor_;
  bool divides_;
  std::uint32_t most_added_;
};
// Whether blocks with these largest magnitudes have the same scale, and the same codes for the same
// weights.
[[nodiscard]] bool same_fp8_rule(QuantizeRule rule, std::uint16_t one, std::uint16_t other);
// The magnitude of a weight that counts for a block's scale: a NaN's does not.
[[nodiscard]] std::uint16_t counted_size(std::uint16_t weight);

// Quantizer::part, spread over threads.
[[nodiscard]] Status quantize_part(const Quantizer& with, QuantizeRule rule, const MatrixPart& part,
                                   const std::byte* weights, unsigned threads,
                                   std::uint16_t* largest, std::byte* codes);

// Of a contiguous matrix: a code for each weight, and the scales (float32) of its blocks, row after
// row. All three may lie at any address.
[[nodiscard]] Status quantize_fp8(const Quantizer& with, QuantizeRule rule,
                                  const std::byte* weights, std::uint64_t rows,
                                  std::uint64_t columns, unsigned threads, std::byte* codes,
                                  std::byte* scales);

// Quantizer::groups of a contiguous matrix, spread over threads.
[[nodiscard]] Status quantize_int4(const Quantizer& with, unsigned group, const std::byte* weights,
                                   std::uint64_t rows, std::uint64_t columns, unsigned threads,
                                   std::byte* packed, std::byte* scales);

}  // namespace driftless
