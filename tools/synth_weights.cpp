// SPDX-License-Identifier: Apache-2.0
// Built with -ffp-contract=off: a fused multiply-add would round differently on machines that have
// one.
#include "tools/synth_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/hash128.h"

namespace driftless {
namespace {

constexpr std::uint64_t kInitialStream = 0;
constexpr std::uint64_t kRowStream = 0x726f7773;
// The part of an embedding's rows whose tokens are in the batch: 3 of 10.
constexpr std::uint64_t kTouchedRows = ~std::uint64_t{0} / 10 * 3;
constexpr double kTailCut = 10.0;
// Adam's normalized steps are mostly below the learning rate.
constexpr double kStepScale = 0.5;

// Nearly a normal distribution: the sum of four uniform numbers of 16 bits. 16 further random bits
// are appended as its lowest bits, so that the part that bf16 drops is practically continuous.
// Standard deviation 0.577, range (-2, 2).
double bell(std::uint64_t stream, std::uint64_t element) {
  const std::uint64_t a = random_bits(stream, 2 * element);
  const std::uint64_t b = random_bits(stream, 2 * element + 1);
  const std::uint64_t sum = (a & 0xffff) + ((a >> 16) & 0xffff) + ((a >> 32) & 0xffff) + (a >> 48);
  const auto fine = static_cast<std::int64_t>((sum << 16) + (b >> 48));
  constexpr std::int64_t kMiddle = std::int64_t{2} << 32;
  return static_cast<double>(fine - kMiddle) * 0x1p-32;
}

}  // namespace

SynthWeights::SynthWeights(std::uint64_t seed, double lr) : seed_(seed) {
  const auto size = static_cast<double>(steps_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const double x = (static_cast<double>(i) + 0.5) / size;
    const double t = (2 * x - 1) / std::sqrt(2 * x * (1 - x));
    steps_[i] = static_cast<float>(lr * (kStepScale * std::clamp(t, -kTailCut, kTailCut)));
  }
}

SynthTensor SynthWeights::tensor(std::string_view name, SynthKind kind,
                                 std::uint64_t row_elements) const {
  SynthTensor tensor;
  tensor.key = random_bits(xxh3_128(name).low, seed_);
  tensor.kind = kind;
  tensor.row_elements = row_elements;
  // Matrices: a median magnitude of about 0.02 that varies a little between tensors.
  const double vary = static_cast<double>(tensor.key >> 32) * 0x1p-32;
  tensor.spread = kind == SynthKind::kNorm ? 0.1 : 0.04 + 0.02 * vary;
  return tensor;
}

void SynthWeights::initialize(const SynthTensor& tensor, std::uint64_t first,
                              std::span<float> masters) {
  const std::uint64_t stream = random_bits(tensor.key, kInitialStream);
  const double center = tensor.kind == SynthKind::kNorm ? 1.0 : 0.0;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    masters[i] = static_cast<float>(center + tensor.spread * bell(stream, first + i));
  }
}

void SynthWeights::step(const SynthTensor& tensor, unsigned step, std::uint64_t first,
                        std::span<float> masters) const {
  const std::uint64_t stream = random_bits(tensor.key, step);
  if (tensor.kind != SynthKind::kEmbedding) {
    step_run(stream, first, masters);
    return;
  }
  const std::uint64_t rows = random_bits(stream, kRowStream);
  while (!masters.empty()) {
    const std::uint64_t row = first / tensor.row_elements;
    const std::uint64_t left_in_row = (row + 1) * tensor.row_elements - first;
    const std::size_t run = std::min<std::uint64_t>(left_in_row, masters.size());
    if (random_bits(rows, row) < kTouchedRows) step_run(stream, first, masters.first(run));
    masters = masters.subspan(run);
    first += run;
  }
}

// One random number serves four elements.
void SynthWeights::step_run(std::uint64_t stream, std::uint64_t first,
                            std::span<float> masters) const {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kTableBits) - 1;
  std::size_t i = 0;
  for (; i + 4 <= masters.size(); i += 4) {
    const std::uint64_t bits = random_bits(stream, (first + i) / 4);
    masters[i] -= steps_[bits & kMask];
    masters[i + 1] -= steps_[(bits >> 16) & kMask];
    masters[i + 2] -= steps_[(bits >> 32) & kMask];
    masters[i + 3] -= steps_[(bits >> 48) & kMask];
  }
  for (std::uint64_t bits = random_bits(stream, (first + i) / 4); i < masters.size(); ++i) {
    masters[i] -= steps_[bits & kMask];
    bits >>= 16;
  }
}

void round_to_bf16(std::span<const float> masters, std::span<std::uint16_t> out) {
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(masters[i]);
    out[i] = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
}

std::uint64_t count_different(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

}  // namespace driftless
