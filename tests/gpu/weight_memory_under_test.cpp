// SPDX-License-Identifier: Apache-2.0
#include "support/weight_memory_under_test.h"

#include <deque>

#include "gpu/device.h"
#include "plugin/device/device_factories.h"

namespace driftless::testing {
namespace {

class GpuTestMemory final : public TestMemory {
 public:
  std::shared_ptr<WeightMemory> memory() override {
    auto made = make_device_memory(0);
    must(made.status());
    return *made;
  }
  std::byte* allocate(std::size_t bytes) override {
    std::byte* const data = held_.emplace_back(bytes).data();
    must(cudaMemset(data, 0, bytes));
    must(cudaDeviceSynchronize());
    return data;
  }
  std::vector<std::byte> read(const std::byte* at, std::size_t bytes) override {
    std::vector<std::byte> out(bytes);
    must(cudaMemcpy(out.data(), at, bytes, cudaMemcpyDeviceToHost));
    return out;
  }
  void write(std::byte* at, std::span<const std::byte> bytes) override {
    must(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());  // it may return before the bytes are there for other streams
  }

 private:
  std::deque<DeviceBytes> held_;
};

}  // namespace

std::unique_ptr<TestMemory> test_memory() { return std::make_unique<GpuTestMemory>(); }

}  // namespace driftless::testing
