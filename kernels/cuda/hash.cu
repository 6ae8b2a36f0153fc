// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/cuda/hash_finish.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_hash.h"

namespace driftless {
namespace {

constexpr unsigned kWarps = 8;  // in a thread block that sums
constexpr unsigned kAhead = 8;  // loads in flight for the chain, of 4 blocks each

// A stretch, with the number of whole blocks that the device takes.
struct Stretch {
  const std::byte* bytes;
  const std::uint64_t* sums;  // 8 for each block
  std::uint64_t blocks;
};

__device__ std::uint64_t load_word(const std::byte* at, bool aligned) {
  if (aligned) return *reinterpret_cast<const std::uint64_t*>(at);
  std::uint64_t word = 0;
  for (unsigned i = 0; i < 8; ++i) word |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return word;
}

// Computes the contribution of each block to the eight accumulators, which does not depend on them:
// a warp for each block, four words for each lane.
__global__ void sum_blocks(const std::byte* bytes, std::uint64_t blocks, std::uint64_t* sums,
                           XxhSecret secret) {
  __shared__ std::uint64_t words[kXxhSecretWords];
  if (threadIdx.x < kXxhSecretWords) words[threadIdx.x] = secret.words[threadIdx.x];
  __syncthreads();
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes) % 8 == 0;
  const unsigned lane = threadIdx.x % 32;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kWarps;
  for (std::uint64_t block = first; block < blocks; block += stride) {
    const std::byte* const at = bytes + block * kXxhBlockBytes;
    std::uint64_t products = 0, values = 0;
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned word = lane + 32 * j;  // stripe word / 8, accumulator word % 8
      const std::uint64_t value = load_word(at + word * 8, aligned);
      const std::uint64_t key = value ^ words[word / 8 + word % 8];
      products += (key & 0xFFFFFFFFU) * (key >> 32);
      values += value;
    }
    // A word's value is added to the accumulator next to its own.
    std::uint64_t sum = products + __shfl_xor_sync(~0U, values, 1);
    sum += __shfl_xor_sync(~0U, sum, 8);
    sum += __shfl_xor_sync(~0U, sum, 16);
    if (lane < 8) sums[block * 8 + lane] = sum;
  }
}

// Walks the chain over the blocks: a warp for each stretch. Lane l computes accumulator l % 8.
__global__ void walk_chains(const Stretch* stretches, std::uint64_t* accumulators,
                            XxhSecret secret) {
  const Stretch stretch = stretches[blockIdx.x];
  const unsigned lane = threadIdx.x;
  const unsigned lane_of_8 = lane % 8;
  std::uint64_t scramble = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if (i == lane_of_8) scramble = secret.words[kXxhScrambleWord + i];
  }
  std::uint64_t acc = accumulators[blockIdx.x * 8 + lane_of_8];
  std::uint64_t next[kAhead];
  const std::uint64_t words = stretch.blocks * 8;
  for (unsigned j = 0; j < kAhead; ++j) {
    next[j] = 32 * j + lane < words ? stretch.sums[32 * j + lane] : 0;
  }
  for (std::uint64_t block = 0; block < stretch.blocks; block += 4 * kAhead) {
    std::uint64_t now[kAhead];
    for (unsigned j = 0; j < kAhead; ++j) {
      now[j] = next[j];
      const std::uint64_t word = (block + 4 * (kAhead + j)) * 8 + lane;
      next[j] = word < words ? stretch.sums[word] : 0;
    }
#pragma unroll
    for (unsigned k = 0; k < 4 * kAhead; ++k) {
      const std::uint64_t sum = __shfl_sync(~0U, now[k / 4], k % 4 * 8 + lane_of_8);
      std::uint64_t mixed = acc + sum;
      mixed ^= mixed >> 47;
      mixed ^= scramble;
      mixed *= kXxhScramblePrime;
      acc = block + k < stretch.blocks ? mixed : acc;
    }
  }
  if (lane < 8) accumulators[blockIdx.x * 8 + lane] = acc;
}

Status hash_status(cudaError_t code) { return cuda::check(code, "hashing on the device"); }

// A stream for this call, and memory allocated in its order: waits for no other work.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  [[nodiscard]] Status open(std::uint64_t bytes) {
    DRIFTLESS_RETURN_IF_ERROR(
        hash_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    if (bytes == 0) return {};
    return hash_status(cudaMallocAsync(&memory_, bytes, stream_));
  }
  [[nodiscard]] std::byte* memory() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

// One call: the part of each stretch for the device, and the part for the host.
struct Plan {
  std::vector<std::uint64_t> blocks;          // of each stretch
  std::vector<std::vector<std::byte>> tails;  // of each, once copied
  std::vector<XxhAccumulators> accumulators;  // of each
  std::uint64_t all_blocks = 0;
};

Plan make_plan(std::span<const std::span<const std::byte>> stretches) {
  Plan plan;
  for (const std::span<const std::byte> stretch : stretches) {
    const std::uint64_t blocks = xxh_device_blocks(stretch.size());
    plan.blocks.push_back(blocks);
    plan.all_blocks += blocks;
    plan.tails.emplace_back(stretch.size() - blocks * kXxhBlockBytes);
    plan.accumulators.push_back(xxh_first_accumulators());
  }
  return plan;
}

Status run(std::span<const std::span<const std::byte>> stretches, Plan& plan) {
  const std::size_t count = stretches.size();
  const std::uint64_t accumulator_bytes = count * sizeof(XxhAccumulators);
  const std::uint64_t sum_bytes = plan.all_blocks * sizeof(XxhAccumulators);
  Workspace space;
  DRIFTLESS_RETURN_IF_ERROR(space.open(sum_bytes + accumulator_bytes + count * sizeof(Stretch)));
  auto* sums = reinterpret_cast<std::uint64_t*>(space.memory());
  auto* accumulators = reinterpret_cast<std::uint64_t*>(space.memory() + sum_bytes);
  auto* table = reinterpret_cast<Stretch*>(space.memory() + sum_bytes + accumulator_bytes);
  const XxhSecret secret = xxh_secret();
  std::vector<Stretch> host_table;
  for (std::size_t i = 0; i < count; ++i) {
    host_table.push_back({stretches[i].data(), sums, plan.blocks[i]});
    if (plan.blocks[i] > 0) {
      const std::uint64_t wanted = (plan.blocks[i] + kWarps - 1) / kWarps;
      const auto grid = static_cast<unsigned>(wanted < 4096 ? wanted : 4096);
      sum_blocks<<<grid, 32 * kWarps, 0, space.stream()>>>(stretches[i].data(), plan.blocks[i],
                                                           sums, secret);
    }
    sums += plan.blocks[i] * 8;
    if (plan.tails[i].empty()) continue;
    DRIFTLESS_RETURN_IF_ERROR(hash_status(
        cudaMemcpyAsync(plan.tails[i].data(), stretches[i].data() + plan.blocks[i] * kXxhBlockBytes,
                        plan.tails[i].size(), cudaMemcpyDefault, space.stream())));
  }
  if (plan.all_blocks > 0) {
    DRIFTLESS_RETURN_IF_ERROR(
        hash_status(cudaMemcpyAsync(accumulators, plan.accumulators.data(), accumulator_bytes,
                                    cudaMemcpyDefault, space.stream())));
    DRIFTLESS_RETURN_IF_ERROR(hash_status(cudaMemcpyAsync(
        table, host_table.data(), count * sizeof(Stretch), cudaMemcpyDefault, space.stream())));
    walk_chains<<<static_cast<unsigned>(count), 32, 0, space.stream()>>>(table, accumulators,
                                                                         secret);
    DRIFTLESS_RETURN_IF_ERROR(hash_status(cudaGetLastError()));
    DRIFTLESS_RETURN_IF_ERROR(
        hash_status(cudaMemcpyAsync(plan.accumulators.data(), accumulators, accumulator_bytes,
                                    cudaMemcpyDefault, space.stream())));
  }
  return hash_status(cudaStreamSynchronize(space.stream()));
}

}  // namespace

Result<std::vector<Hash128>> device_xxh3_128(
    std::span<const std::span<const std::byte>> stretches) {
  std::vector<Hash128> hashes;
  if (stretches.empty()) return hashes;
  Plan plan = make_plan(stretches);
  DRIFTLESS_RETURN_IF_ERROR(run(stretches, plan));
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    hashes.push_back(xxh_finish(plan.accumulators[i], plan.blocks[i], plan.tails[i]));
  }
  return hashes;
}

}  // namespace driftless
