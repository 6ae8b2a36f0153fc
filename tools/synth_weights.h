// SPDX-License-Identifier: Apache-2.0
// The numbers for `driftless synth`: fp32 masters, heavy-tailed steps, bf16 rounding.
//
// Every number is a function of (seed, tensor name, element, step). It is computed only with
// integer arithmetic and correctly rounded IEEE operations, so it is the same on every machine,
// whatever the order and the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace driftless {

// SplitMix64: number `counter` of the stream that starts at `stream`.
constexpr std::uint64_t random_bits(std::uint64_t stream, std::uint64_t counter) {
  std::uint64_t x = stream + (counter + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

enum class SynthKind : unsigned char {
  kMatrix,
  kEmbedding,  // a step changes some rows and leaves the others unchanged
  kNorm,       // values near 1
};

struct SynthTensor {
  std::uint64_t key = 0;  // selects its random streams
  SynthKind kind = SynthKind::kMatrix;
  std::uint64_t row_elements = 0;  // a multiple of 4
  double spread = 0;               // of the initial values
};

class SynthWeights {
 public:
  // Steps are lr * u; u is a Student t with 2 degrees of freedom, scaled and with its tails cut
  // off.
  SynthWeights(std::uint64_t seed, double lr);

  [[nodiscard]] SynthTensor tensor(std::string_view name, SynthKind kind,
                                   std::uint64_t row_elements) const;

  // Fills elements [first, first + masters.size()) for step 0. `first` is a multiple of 4.
  static void initialize(const SynthTensor& tensor, std::uint64_t first, std::span<float> masters);
  // Applies one optimizer step to them; steps count from 1.
  void step(const SynthTensor& tensor, unsigned step, std::uint64_t first,
            std::span<float> masters) const;

 private:
  static constexpr unsigned kTableBits = 12;

  void step_run(std::uint64_t stream, std::uint64_t first, std::span<float> masters) const;

  std::uint64_t seed_;
  std::array<float, std::size_t{1} << kTableBits> steps_{};  // quantiles of lr * u
};

// Rounds to nearest, ties to even. Finite numbers only; both sizes are equal.
void round_to_bf16(std::span<const float> masters, std::span<std::uint16_t> out);
[[nodiscard]] std::uint64_t count_different(std::span<const std::uint16_t> a,
                                            std::span<const std::uint16_t> b);

}  // namespace driftless
