// SPDX-License-Identifier: Apache-2.0
#include "support/weight_memory_under_test.h"

#include <algorithm>
#include <deque>

namespace driftless::testing {
namespace {

class HostTestMemory final : public TestMemory {
 public:
  std::shared_ptr<WeightMemory> memory() override { return make_host_memory(); }
  std::byte* allocate(std::size_t bytes) override { return held_.emplace_back(bytes).data(); }
  std::vector<std::byte> read(const std::byte* at, std::size_t bytes) override {
    return {at, at + bytes};
  }
  void write(std::byte* at, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), at);
  }

 private:
  std::deque<std::vector<std::byte>> held_;
};

}  // namespace

std::unique_ptr<TestMemory> test_memory() { return std::make_unique<HostTestMemory>(); }

}  // namespace driftless::testing
