// SPDX-License-Identifier: Apache-2.0
// Measures for how long a GPU is occupied while other code works on it. A library for
// tests/bench/module_bench.py.
//
// The probe launches a tiny kernel of high priority again and again, and measures how long each one
// waits. Each launch is a graph, so the time between its two events contains no time of the host,
// neither of the interpreter nor of the scheduler. Beside the probe runs a simulated engine: short
// kernels that measure the gaps between them. About 25 ms of them are queued, so that a slow host
// does not let the queue run empty.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace {

__global__ void count(unsigned* data) { ++data[threadIdx.x]; }

struct Gaps {
  unsigned long long ended, longest, kernels;
};

__device__ unsigned long long gpu_ns() {
  unsigned long long ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

constexpr unsigned kTogether = 32, kQueued = 8;
constexpr unsigned long long kKernelNs = 100'000;

__global__ void work(Gaps* gaps) {
  const unsigned long long begin = gpu_ns();
  // Ignore gaps between the first kernels: the queue is still being filled.
  if (++gaps->kernels > kTogether && begin > gaps->ended) {
    gaps->longest = max(gaps->longest, begin - gaps->ended);
  }
  while (gpu_ns() - begin < kKernelNs) {
  }
  gaps->ended = gpu_ns();
}

class Engine {
 public:
  ~Engine() {
    cudaFree(gaps_);
    for (cudaEvent_t event : done_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }
  bool make() {
    for (cudaEvent_t& event : done_) {
      if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return false;
    }
    return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess &&
           cudaMalloc(&gaps_, sizeof(Gaps)) == cudaSuccess &&
           cudaMemset(gaps_, 0, sizeof(Gaps)) == cudaSuccess && step();
  }
  // Queues some kernels, once there is room in the queue.
  bool step() {
    cudaEvent_t& event = done_[turn_++ % done_.size()];
    if (cudaEventSynchronize(event) != cudaSuccess) return false;
    for (unsigned i = 0; i < kTogether; ++i) work<<<1, 1, 0, stream_>>>(gaps_);
    return cudaEventRecord(event, stream_) == cudaSuccess;
  }
  bool longest_gap(double* ms) {
    Gaps found{};
    if (cudaStreamSynchronize(stream_) != cudaSuccess ||
        cudaMemcpy(&found, gaps_, sizeof(found), cudaMemcpyDeviceToHost) != cudaSuccess) {
      return false;
    }
    *ms = static_cast<double>(found.longest) * 1e-6;
    return true;
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kQueued> done_{};
  Gaps* gaps_ = nullptr;
  unsigned turn_ = 0;
};

struct Probe {
  cudaStream_t stream = nullptr;
  cudaEvent_t before = nullptr, after = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  unsigned* data = nullptr;

  ~Probe() {
    cudaGraphExecDestroy(launchable);
    cudaGraphDestroy(graph);
    cudaFree(data);
    cudaEventDestroy(before);
    cudaEventDestroy(after);
    cudaStreamDestroy(stream);
  }
  bool make() {
    int least = 0, greatest = 0;
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess ||
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) != cudaSuccess ||
        cudaEventCreate(&before) != cudaSuccess || cudaEventCreate(&after) != cudaSuccess ||
        cudaMalloc(&data, 32 * sizeof(unsigned)) != cudaSuccess ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      return false;
    }
    cudaEventRecordWithFlags(before, stream, cudaEventRecordExternal);
    count<<<1, 32, 0, stream>>>(data);
    cudaEventRecordWithFlags(after, stream, cudaEventRecordExternal);
    return cudaStreamEndCapture(stream, &graph) == cudaSuccess &&
           cudaGraphInstantiate(&launchable, graph, 0) == cudaSuccess;
  }
  bool ask(float* ms) const {
    return cudaGraphLaunch(launchable, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess &&
           cudaEventElapsedTime(ms, before, after) == cudaSuccess;
  }
};

}  // namespace

struct ProbeResult {
  double longest_ms, longest_at_ms;  // longest wait on the GPU; its end, from the start
  double longest_call_ms;            // longest wait of the host for a launch, with its scheduler
  double longest_gap_ms;             // longest time without a kernel of the engine
  long asked;
};

namespace {

bool ask_until(const volatile int* ending, const Probe& probe, ProbeResult* result) {
  using Clock = std::chrono::steady_clock;
  using Ms = std::chrono::duration<double, std::milli>;
  const auto begin = Clock::now();
  float ms = 0;
  while (*ending == 0) {
    const auto asked = Clock::now();
    if (!probe.ask(&ms)) return false;
    const auto answered = Clock::now();
    ++result->asked;
    result->longest_call_ms = std::max(result->longest_call_ms, Ms(answered - asked).count());
    if (ms <= result->longest_ms) continue;
    result->longest_ms = ms;
    result->longest_at_ms = Ms(answered - begin).count();
  }
  return true;
}

}  // namespace

// Probes until *ending is not 0. Sets *ready once it has started. Returns 0, or 1 if CUDA fails.
extern "C" __attribute__((visibility("default"))) int gpu_probe(const volatile int* ending,
                                                                volatile int* ready,
                                                                ProbeResult* result) {
  *result = {};
  Probe probe;
  Engine engine;
  float ms = 0;
  if (!probe.make() || !probe.ask(&ms) || !engine.make()) {  // the first ones load the kernels
    *ready = 1;
    return 1;
  }
  bool works = true;
  std::thread at_work([&] {
    while (*ending == 0 && works) works = engine.step();
  });
  *ready = 1;
  const bool asked = ask_until(ending, probe, result);
  at_work.join();
  return asked && works && engine.longest_gap(&result->longest_gap_ms) ? 0 : 1;
}
