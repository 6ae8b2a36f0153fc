// SPDX-License-Identifier: Apache-2.0
// The memory in which the contract suites of targets keep weights. The suites are built twice:
// contract/ provides host memory, gpu/ a GPU's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "plugin/targets/weight_memory.h"

namespace driftless::testing {

class TestMemory {
 public:
  virtual ~TestMemory() = default;
  [[nodiscard]] virtual std::shared_ptr<WeightMemory> memory() = 0;
  // Zeroed; as long as this lives.
  [[nodiscard]] virtual std::byte* allocate(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::vector<std::byte> read(const std::byte* at, std::size_t bytes) = 0;
  virtual void write(std::byte* at, std::span<const std::byte> bytes) = 0;
};
[[nodiscard]] std::unique_ptr<TestMemory> test_memory();

}  // namespace driftless::testing
