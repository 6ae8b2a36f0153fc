// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/parallel.h"
#include "plugin/targets/weight_memory.h"
#include "tools/bench/measure.h"
#include "tools/synth_weights.h"

namespace driftless::bench {
namespace {

constexpr std::uint64_t kPage = 4096;

// A weight: random sign and mantissa; each exponent is half as frequent as the one above it.
std::uint16_t weight_bits(std::uint64_t random) {
  const auto steps = static_cast<unsigned>(__builtin_ctzll(random | (std::uint64_t{1} << 20)));
  const std::uint64_t sign_and_mantissa = (random >> 32) & 0x807f;
  return static_cast<std::uint16_t>(sign_and_mantissa | (std::uint64_t{122 - steps} << 7));
}

void fill_tensor(std::uint64_t seed, std::uint64_t units, std::byte* before, std::byte* after) {
  constexpr auto kChanged = static_cast<std::uint32_t>(kDensity * 65536.0 * 65536.0);
  const std::uint64_t stream = seed * 0xd1342543de82ef95ULL;
  for (std::uint64_t i = 0; i < units; ++i) {
    const std::uint16_t old_bits = weight_bits(random_bits(stream, 2 * i));
    const std::uint64_t random = random_bits(stream, 2 * i + 1);
    std::uint16_t new_bits = old_bits;
    if (static_cast<std::uint32_t>(random) < kChanged) {
      new_bits = static_cast<std::uint16_t>(old_bits + ((random >> 63) != 0 ? 1 : -1));
    }
    std::memcpy(before + 2 * i, &old_bits, 2);
    std::memcpy(after + 2 * i, &new_bits, 2);
  }
}

}  // namespace

Result<BenchData> make_bench_data(std::uint64_t side_bytes, unsigned threads) {
  const std::uint64_t tensor_bytes = std::max(kPage, side_bytes / kTensors / kPage * kPage);
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < kTensors; ++i) {
    // Names of equal length, so that they sort by number.
    DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec, TensorSpec::make(concat("tensor_", i / 10, i % 10),
                                                                 DType::kBF16, {tensor_bytes / 2}));
    specs.push_back(std::move(spec));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(WeightLayout layout, WeightLayout::make(std::move(specs)));
  const std::uint64_t side = kTensors * tensor_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(auto old_side, make_host_memory()->allocate(side));
  DRIFTLESS_ASSIGN_OR_RETURN(auto new_side, make_host_memory()->allocate(side));
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    pairs.push_back({i, 2, tensor_bytes / 2, old_side.get() + i * tensor_bytes,
                     new_side.get() + i * tensor_bytes});
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(kTensors, threads, [&](std::size_t i, unsigned) {
    fill_tensor(i + 1, tensor_bytes / 2, old_side.get() + i * tensor_bytes,
                new_side.get() + i * tensor_bytes);
    return Status{};
  }));
  return BenchData{std::move(layout), side, std::move(old_side), std::move(new_side),
                   std::move(pairs)};
}

}  // namespace driftless::bench
