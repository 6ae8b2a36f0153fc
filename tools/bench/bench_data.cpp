// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_data.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/parallel.h"

namespace driftless::bench {
namespace {

constexpr std::uint64_t kPage = 4096;

// SplitMix64: one addition and a mix per number, and any start gives a good sequence.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 0xd1342543de82ef95ULL) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }

 private:
  std::uint64_t state_;
};

// A weight: random sign and mantissa, each exponent half as frequent as the one above it.
std::uint16_t weight_bits(std::uint64_t random) {
  const auto steps = static_cast<unsigned>(__builtin_ctzll(random | (std::uint64_t{1} << 20)));
  const std::uint64_t sign_and_mantissa = (random >> 32) & 0x807f;
  return static_cast<std::uint16_t>(sign_and_mantissa | (std::uint64_t{122 - steps} << 7));
}

void fill_tensor(std::uint64_t seed, std::uint64_t units, std::byte* before, std::byte* after) {
  constexpr auto kChanged = static_cast<std::uint32_t>(kDensity * 65536.0 * 65536.0);
  Numbers numbers(seed);
  for (std::uint64_t i = 0; i < units; ++i) {
    const std::uint16_t old_bits = weight_bits(numbers.next());
    const std::uint64_t random = numbers.next();
    std::uint16_t new_bits = old_bits;
    if (static_cast<std::uint32_t>(random) < kChanged) {
      new_bits = static_cast<std::uint16_t>(old_bits + ((random >> 63) != 0 ? 1 : -1));
    }
    std::memcpy(before + 2 * i, &old_bits, 2);
    std::memcpy(after + 2 * i, &new_bits, 2);
  }
}

}  // namespace

Result<Memory> Memory::allocate(std::uint64_t size) {
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return errno_status(errno, concat("memory of ", size, " bytes"));
  static_cast<void>(::madvise(data, size, MADV_HUGEPAGE));  // a wish: small pages do, too
  return Memory(static_cast<std::byte*>(data), size);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<BenchData> make_bench_data(std::uint64_t side_bytes, unsigned threads) {
  const std::uint64_t tensor_bytes = std::max(kPage, side_bytes / kTensors / kPage * kPage);
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < kTensors; ++i) {
    // Names of one length, so that their order is the order of the numbers.
    DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec, TensorSpec::make(concat("tensor_", i / 10, i % 10),
                                                                 DType::kBF16, {tensor_bytes / 2}));
    specs.push_back(std::move(spec));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(WeightLayout layout, WeightLayout::make(std::move(specs)));
  DRIFTLESS_ASSIGN_OR_RETURN(Memory old_side, Memory::allocate(kTensors * tensor_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(Memory new_side, Memory::allocate(kTensors * tensor_bytes));
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    pairs.push_back({i, 2, tensor_bytes / 2, old_side.data() + i * tensor_bytes,
                     new_side.data() + i * tensor_bytes});
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(kTensors, threads, [&](std::size_t i, unsigned) {
    fill_tensor(i + 1, tensor_bytes / 2, old_side.data() + i * tensor_bytes,
                new_side.data() + i * tensor_bytes);
    return Status{};
  }));
  return BenchData{std::move(layout), std::move(old_side), std::move(new_side), std::move(pairs)};
}

}  // namespace driftless::bench
