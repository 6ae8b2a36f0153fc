// How long a GPU makes a tiny kernel of high priority wait, while others work there: a library for
// tests/bench/module_bench.py. Launched as a graph, so that nothing of the host lies between the
// two events: neither the interpreter nor the scheduler.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>

namespace {

__global__ void count(unsigned* data) { ++data[threadIdx.x]; }

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
  double longest_ms, longest_at_ms;  // the GPU's wait; how long after the begin it ended
  double longest_call_ms;            // the host's, from asking to knowing: its scheduler included
  long asked;
};

// Asks again and again until *ending is not 0. Sets *ready once it asks. 0, or 1 where CUDA fails.
extern "C" __attribute__((visibility("default"))) int gpu_probe(const volatile int* ending,
                                                                volatile int* ready,
                                                                ProbeResult* result) {
  using Clock = std::chrono::steady_clock;
  using Ms = std::chrono::duration<double, std::milli>;
  *result = {};
  Probe probe;
  float ms = 0;
  if (!probe.make() || !probe.ask(&ms)) {  // the first one loads the kernel
    *ready = 1;
    return 1;
  }
  *ready = 1;
  const auto begin = Clock::now();
  while (*ending == 0) {
    const auto asked = Clock::now();
    if (!probe.ask(&ms)) return 1;
    const auto answered = Clock::now();
    ++result->asked;
    result->longest_call_ms = std::max(result->longest_call_ms, Ms(answered - asked).count());
    if (ms <= result->longest_ms) continue;
    result->longest_ms = ms;
    result->longest_at_ms = Ms(answered - begin).count();
  }
  return 0;
}
