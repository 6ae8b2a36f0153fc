// SPDX-License-Identifier: Apache-2.0
// xxh3-128 on the device is that of the host, for every size and alignment.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <random>

#include "gpu/device.h"
#include "kernels/cuda/hash_finish.h"
#include "kernels/device_hash.h"

namespace driftless {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The chain as the device computes it, on the host.
TEST(DeviceHash, TheHostFinishesWhatBlocksBegan) {
  for (const std::size_t size : {16384, 16385, 17407, 17408, 17409, 100'000, 1 << 20}) {
    const std::vector<std::byte> bytes = random_bytes(size, 1);
    const XxhSecret secret = xxh_secret();
    XxhAccumulators acc = xxh_first_accumulators();
    const std::uint64_t blocks = xxh_device_blocks(size);
    ASSERT_GT(blocks, 0U);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      for (unsigned word = 0; word < 128; ++word) {
        std::uint64_t value = 0;
        std::memcpy(&value, bytes.data() + block * kXxhBlockBytes + word * 8, 8);
        const std::uint64_t key = value ^ secret.words[word / 8 + word % 8];
        acc[word % 8] += (key & 0xFFFFFFFFU) * (key >> 32);
        acc[word % 8 ^ 1] += value;
      }
      for (unsigned i = 0; i < 8; ++i) {
        acc[i] = (acc[i] ^ (acc[i] >> 47) ^ secret.words[kXxhScrambleWord + i]) * kXxhScramblePrime;
      }
    }
    const auto tail = std::span<const std::byte>(bytes).subspan(blocks * kXxhBlockBytes);
    EXPECT_EQ(xxh_finish(acc, blocks, tail), xxh3_128(bytes)) << size;
  }
}

TEST(DeviceHash, IsTheHostsForEverySizeAndAlignment) {
  const std::vector<std::byte> bytes = random_bytes((1 << 24) + 64, 2);
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, bytes.size()), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
  std::vector<std::size_t> sizes{0, 1, 3, 16, 17, 128, 129, 240, 241, 512, 1023, 1024, 1025};
  for (std::size_t size = 16'000; size < 20'000; size += 61) sizes.push_back(size);
  for (const std::size_t size : {16383, 16384, 16385, 17408, 65536, 65537, 1'000'003, 1 << 24}) {
    sizes.push_back(size);
  }
  std::vector<std::span<const std::byte>> stretches;
  std::vector<Hash128> expected;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t offset = i % 3 == 0 ? i % 64 : 0;
    stretches.emplace_back(device + offset, sizes[i]);
    expected.push_back(xxh3_128(std::span(bytes).subspan(offset, sizes[i])));
  }
  const Result<std::vector<Hash128>> hashes = device_xxh3_128(stretches);
  ASSERT_TRUE(hashes.ok()) << hashes.status().to_string();
  ASSERT_EQ(hashes->size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ((*hashes)[i], expected[i]) << sizes[i] << " bytes";
  }
  cudaFree(device);
}

TEST(DeviceHash, NothingIsHashedToNothing) {
  const Result<std::vector<Hash128>> hashes = device_xxh3_128({});
  ASSERT_TRUE(hashes.ok());
  EXPECT_TRUE(hashes->empty());
}

}  // namespace
}  // namespace driftless
