// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of gpu_bench: weights in device memory, floors, and diffs of the weights.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/operations.h"

namespace driftless::bench {

inline constexpr std::uint64_t kUnits = 1'600'000'000;  // bf16

inline void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}
inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

inline std::byte* device(std::uint64_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  return static_cast<std::byte*>(memory);
}
inline std::byte* pinned(std::uint64_t bytes) {
  void* memory = nullptr;
  must(cudaMallocHost(&memory, bytes));
  return static_cast<std::byte*>(memory);
}

// The median of several runs, in ms.
inline double time_ms(const std::function<void()>& work, int runs = 15) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < runs + 2; ++i) {
    must(cudaEventRecord(begin));
    work();
    must(cudaEventRecord(end));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

inline void print(const std::string& work, double ms, const std::string& floor, double floor_ms,
                  double bytes) {
  std::printf(
      "{\"work\": \"%s\", \"ms\": %.4f, \"floor\": \"%s\", \"floor_ms\": %.4f, \"ratio\": %.3f, "
      "\"gigabytes\": %.3f}\n",
      work.c_str(), ms, floor.c_str(), floor_ms, ms / floor_ms, bytes / 1e9);
  std::fflush(stdout);
}

static __device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

static __global__ void fill(std::uint16_t* units, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    units[i] = static_cast<std::uint16_t>(mix(i));
  }
}
// Changes about `per_million` units in a million.
static __global__ void change(std::uint16_t* units, const std::uint16_t* from, std::uint64_t count,
                              std::uint32_t per_million) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i * 3 + 1);
    const bool changes = random % 1'000'000 < per_million;
    units[i] = from[i] ^ (changes ? 1U + (random >> 60) : 0U);
  }
}
// The floor: reads everything by 16-byte loads, and writes one word.
template <int Loads, int Sides>
__global__ void __launch_bounds__(512)
    read_all(const uint4* a, const uint4* b, std::uint64_t groups, unsigned* out) {
  unsigned sum = 0;
  const std::uint64_t stride = gridDim.x * 512ULL * Loads;
  for (std::uint64_t first = blockIdx.x * 512ULL * Loads + threadIdx.x; first < groups;
       first += stride) {
    uint4 x[Loads], y[Loads];
#pragma unroll
    for (int j = 0; j < Loads; ++j) {
      const std::uint64_t at = first + j * 512;
      x[j] = at < groups ? __ldcs(a + at) : uint4{};
      y[j] = Sides == 2 && at < groups ? __ldcs(b + at) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < Loads; ++j) {
      sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w ^ y[j].x ^ y[j].y ^ y[j].z ^ y[j].w;
    }
  }
  if (sum == 0x12345678) *out = sum;
}

struct Bench {
  std::byte* before = device(kUnits * 2);
  std::byte* after = device(kUnits * 2);
  std::byte* positions = nullptr;
  std::byte* values = nullptr;
  std::uint64_t room = 0;
  unsigned* word = reinterpret_cast<unsigned*>(device(256));
  double read_both = 0, read_one = 0;

  void set_changed(std::uint32_t per_million) {
    change<<<2048, 256>>>(units(after), units(before), kUnits, per_million);
    must(cudaDeviceSynchronize());
  }
  static std::uint16_t* units(std::byte* bytes) { return reinterpret_cast<std::uint16_t*>(bytes); }

  template <int Loads, int Sides>
  double read(int blocks) {
    return time_ms([&] {
      read_all<Loads, Sides><<<blocks, 512>>>(reinterpret_cast<const uint4*>(before),
                                              reinterpret_cast<const uint4*>(after),
                                              kUnits * 2 / 16, word);
    });
  }
  void floors() {
    read_both = 1e9, read_one = 1e9;
    for (const int blocks : {132 * 2, 132 * 4, 132 * 8, 132 * 32}) {
      read_both = std::min({read_both, read<2, 2>(blocks), read<4, 2>(blocks)});
      read_one = std::min({read_one, read<4, 1>(blocks), read<8, 1>(blocks)});
    }
    print("read both", read_both, "itself", read_both, kUnits * 4.0);
    print("read one", read_one, "itself", read_one, kUnits * 2.0);
  }
  void make_room(std::uint64_t changed) {
    cudaFree(positions);
    cudaFree(values);
    positions = device(changed * 4);
    values = device(changed * 2);
    room = changed;
  }
};

// Divides the memory into tensors of these sizes, each at a multiple of 256 bytes.
struct Cut {
  std::vector<std::uint64_t> units;
  std::vector<cuda::DiffBatch::Tensor> tensors;

  Cut(Bench& bench, std::size_t count, bool mixed) {
    std::mt19937_64 random(1);
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      weights.push_back(mixed ? std::exp2(static_cast<double>(random() % 1000) / 100) : 1);
      sum += weights.back();
    }
    std::uint64_t at = 0;
    for (const double weight : weights) {
      auto tensor_units = static_cast<std::uint64_t>(static_cast<double>(kUnits) * weight / sum);
      const std::uint64_t padded = tensor_units / 128 * 128;
      if (mixed && padded > 200) tensor_units = padded - random() % 120;
      units.push_back(mixed ? tensor_units : padded);
      tensors.push_back({bench.before + at * 2, bench.after + at * 2});
      at += padded;
    }
  }
};

struct Diff {
  cuda::Workspace work;
  Result<cuda::DiffBatch> batch;

  Diff(const Cut& cut, std::uint64_t room)
      : work(allocate(cuda::DiffBatch::workspace_size(cut.units, 2, room))),
        batch(cuda::DiffBatch::make(cut.units, 2, room, work, nullptr)) {
    must(batch.status());
  }
  ~Diff() {
    cudaFree(work.dev);
    cudaFreeHost(work.host);
  }
  static cuda::Workspace allocate(const cuda::WorkspaceSize& size) {
    return {device(size.dev_bytes), size.dev_bytes, pinned(size.host_bytes), size.host_bytes};
  }
  double time(const Bench& bench, const Cut& cut, cuda::PositionCoding coding) {
    const double ms = time_ms(
        [&] { must(batch->run(cut.tensors, coding, bench.positions, bench.values, nullptr)); });
    if (batch->results().changed > bench.room) {
      std::fprintf(stderr, "no room: %llu changed\n",
                   static_cast<unsigned long long>(batch->results().changed));
      std::exit(1);
    }
    return ms;
  }
};

void bench_captured(Bench& bench);
void bench_compact(Bench& bench);
void bench_quantize(Bench& bench);

}  // namespace driftless::bench
