// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/verify.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>

#include "kernels/tensor_ops.h"

namespace driftless {
namespace {

// The number that a pattern of `exponent_bits` and `mantissa_bits` (and a sign) stands for.
double small_float(std::uint64_t bits, unsigned exponent_bits, unsigned mantissa_bits) {
  const std::uint64_t mantissa = bits & ((1ULL << mantissa_bits) - 1);
  const std::uint64_t exponent = (bits >> mantissa_bits) & ((1ULL << exponent_bits) - 1);
  const bool negative = ((bits >> (mantissa_bits + exponent_bits)) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1ULL << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else {
    const double fraction =
        static_cast<double>(mantissa) / static_cast<double>(1ULL << mantissa_bits);
    const int power = exponent == 0 ? 1 - bias : static_cast<int>(exponent) - bias;
    value = exponent == 0 ? fraction : 1 + fraction;
    for (int i = 0; i < power; ++i) value *= 2;
    for (int i = 0; i > power; --i) value /= 2;
  }
  return negative ? -value : value;
}

std::optional<double> number(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kBF16: return small_float(bits, 8, 7);
    case DType::kF16: return small_float(bits, 5, 10);
    case DType::kF8E5M2: return small_float(bits, 5, 2);
    case DType::kF32: return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case DType::kF64: return std::bit_cast<double>(bits);
    default: return std::nullopt;
  }
}

}  // namespace

std::string describe_unit(DType dtype, const std::byte* unit) {
  const unsigned width = unit_bytes(dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, unit, width);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "0x%0*llx", static_cast<int>(2 * width),
                static_cast<unsigned long long>(bits));
  std::string result = text.data();
  if (const std::optional<double> value = number(dtype, bits)) {
    std::snprintf(text.data(), text.size(), " (%.9g)", *value);
    result += text.data();
  }
  return result;
}

Result<std::optional<Difference>> compare_weights(const Checkpoint& checkpoint,
                                                  const Checkpoint& other, unsigned threads,
                                                  const Progress& progress) {
  const WeightLayout& layout = checkpoint.layout();
  DRIFTLESS_RETURN_IF_ERROR(layout.check_same(other.layout(), checkpoint.path(), other.path()));
  std::vector<TensorPair> pairs;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    pairs.push_back({tensor, unit_bytes(layout[tensor].dtype), layout[tensor].units(),
                     other.tensor(tensor).data, checkpoint.tensor(tensor).data});
  }
  std::optional<Difference> first;
  std::uint32_t last_tensor = 0;
  std::mutex mutex;
  std::uint64_t done = 0;
  const auto in_parallel = [&](const DiffPiece& piece) -> Status {
    const std::uint64_t offset = piece.origin * piece.pair->unit_bytes;
    const std::uint64_t size = piece.units * piece.pair->unit_bytes;
    checkpoint.forget(piece.pair->tensor, offset, size);
    other.forget(piece.pair->tensor, offset, size);
    const std::scoped_lock lock(mutex);
    done += size;
    if (progress) progress(done, layout.total_bytes());
    return {};
  };
  const auto in_order = [&](const DiffPiece& piece) -> Status {
    const std::uint32_t tensor = piece.pair->tensor;
    if (!first) {
      const std::uint64_t position = piece.origin + piece.delta.offsets.front();
      const std::uint64_t at = position * piece.pair->unit_bytes;
      const DType dtype = layout[tensor].dtype;
      first = Difference{layout[tensor].name,
                         position,
                         describe_unit(dtype, piece.pair->new_data + at),
                         describe_unit(dtype, piece.pair->old_data + at),
                         0,
                         1};
    } else if (tensor != last_tensor) {
      ++first->tensors;
    }
    last_tensor = tensor;
    first->units += piece.delta.count();
    return {};
  };
  DiffOptions options;
  options.threads = threads;
  DRIFTLESS_RETURN_IF_ERROR(diff_tensors(host_kernels(), pairs, options, in_parallel, in_order));
  return first;
}

}  // namespace driftless
