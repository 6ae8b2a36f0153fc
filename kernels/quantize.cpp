// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize_parts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "kernels/fp8_rule.h"

namespace driftless {

Fp8Coder::Fp8Coder(QuantizeRule rule, std::uint16_t largest) {
  const CodeRule codes = fp8_rule(rule, largest).codes;
  factor_ = codes.factor;
  divides_ = codes.divides;
  most_added_ = codes.most_added;
}

std::uint8_t Fp8Coder::code(std::uint16_t weight) const {
  return divides_ ? code_of_bf16<true>(weight, factor_, most_added_)
                  : code_of_bf16<false>(weight, factor_, most_added_);
}

std::uint8_t fp8_code(QuantizeRule rule, std::uint16_t largest, std::uint16_t weight) {
  return Fp8Coder(rule, largest).code(weight);
}

float fp8_scale(QuantizeRule rule, std::uint16_t largest) { return fp8_rule(rule, largest).scale; }

bool same_fp8_rule(QuantizeRule rule, std::uint16_t one, std::uint16_t other) {
  if (one == other) return true;
  const Fp8Rule a = fp8_rule(rule, one), b = fp8_rule(rule, other);
  return a.scale == b.scale && a.codes.factor == b.codes.factor &&
         a.codes.most_added == b.codes.most_added;
}

std::uint16_t counted_size(std::uint16_t weight) { return size_of_bf16(weight); }

Status quantize_parts(const Quantizer& with, QuantizeRule rule,
                      std::span<const PartToQuantize> parts, unsigned threads) {
  struct Task {  // a row of blocks
    const PartToQuantize* of;
    std::uint64_t row;
  };
  std::vector<Task> tasks;
  for (const PartToQuantize& each : parts) {
    for (std::uint64_t row = 0; row < each.part.blocks_high(); ++row) tasks.push_back({&each, row});
  }
  return parallel_for(tasks.size(), threads, [&](std::size_t task, unsigned) {
    const auto& [part, weights, largest, codes] = *tasks[task].of;
    const std::uint64_t row = tasks[task].row;
    MatrixPart rows_part = part;
    const std::uint64_t first = row == 0 ? 0 : row * kQuantizeBlock - part.row;
    rows_part.row = row == 0 ? part.row : 0;
    rows_part.rows = std::min(kQuantizeBlock - rows_part.row, part.rows - first);
    const std::uint64_t at = first * part.stride;
    with.part(rule, rows_part, weights + at * sizeof(std::uint16_t),
              largest + row * part.blocks_wide(), codes == nullptr ? nullptr : codes + at);
    return Status();
  });
}

Status quantize_part(const Quantizer& with, QuantizeRule rule, const MatrixPart& part,
                     const std::byte* weights, unsigned threads, std::uint16_t* largest,
                     std::byte* codes) {
  const PartToQuantize one{part, weights, largest, codes};
  return quantize_parts(with, rule, {&one, 1}, threads);
}

void write_fp8_scales(QuantizeRule rule, std::span<const std::uint16_t> largest,
                      std::byte* scales) {
  for (std::size_t i = 0; i < largest.size(); ++i) {
    const float scale = fp8_scale(rule, largest[i]);
    std::memcpy(scales + i * sizeof(scale), &scale, sizeof(scale));
  }
}

Status quantize_fp8(const Quantizer& with, QuantizeRule rule, const std::byte* weights,
                    std::uint64_t rows, std::uint64_t columns, unsigned threads, std::byte* codes,
                    std::byte* scales) {
  const MatrixPart all{rows, columns, columns};
  std::vector<std::uint16_t> largest(all.blocks_high() * all.blocks_wide());
  DRIFTLESS_RETURN_IF_ERROR(
      quantize_part(with, rule, all, weights, threads, largest.data(), codes));
  write_fp8_scales(rule, largest, scales);
  return {};
}

Status quantize_int4(const Quantizer& with, unsigned group, const std::byte* weights,
                     std::uint64_t rows, std::uint64_t columns, unsigned threads, std::byte* packed,
                     std::byte* scales) {
  constexpr std::uint64_t kTaskRows = 64;
  return parallel_for((rows + kTaskRows - 1) / kTaskRows, threads, [&](std::size_t task, unsigned) {
    const std::uint64_t row = task * kTaskRows, at = row * columns;
    with.groups(group, std::min(kTaskRows, rows - row), columns, columns,
                weights + at * sizeof(std::uint16_t), packed + at / 2,
                scales + at / group * sizeof(std::uint16_t));
    return Status();
  });
}

}  // namespace driftless
