// SPDX-License-Identifier: Apache-2.0
// Measures the time from publish() until the version is committed on another process's GPU, over
// NCCL: the total, and its parts.
//
//   mpirun -n 1 gpu_publish_bench trainer : -n 1 gpu_publish_bench rollout
//
// Both processes may share one GPU. They then pose as two hosts, and NCCL uses sockets, so the sum
// of the parts is valid, but the speed of the network is not. Prints JSON lines with times of
// CLOCK_MONOTONIC, which is the same for all processes of a machine; gpu_table.py combines the
// lines of both processes.
#include <cuda_runtime.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "plugin/device/device_factories.h"
#include "plugin/job/devices.h"
#include "plugin/job/job_process.h"
#include "plugin/job/roads.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"

using namespace driftless;

namespace {

constexpr std::size_t kTensors = 24;
constexpr std::uint64_t kTensorUnits = 66'666'624;  // bf16; 1.6 G in all
constexpr int kVersions = 6;

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_publish_bench: %s\n", status.to_string().c_str());
  std::exit(1);
}
void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "gpu_publish_bench: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

double now_ms() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
__global__ void fill(std::uint16_t* units, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    units[i] = static_cast<std::uint16_t>(mix(i));
  }
}
// Flips bits of one unit in a hundred.
__global__ void step(std::uint16_t* units, std::uint64_t count, std::uint64_t seed) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i * 7 + seed * 1000003);
    if (random % 100 == 0) units[i] ^= static_cast<std::uint16_t>(1 + (random >> 60));
  }
}

// The weights of either side: one stretch of device memory.
struct Model {
  std::byte* memory = nullptr;
  std::vector<TensorSpec> specs;

  Model() {
    must(cudaMalloc(reinterpret_cast<void**>(&memory), kTensors * kTensorUnits * 2));
    fill<<<2048, 256>>>(units(), kTensors * kTensorUnits);
    must(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < kTensors; ++i) {
      const std::string name = "model.layers." + std::to_string(100 + i) + ".weight";
      specs.push_back(*TensorSpec::make(name, DType::kBF16, {kTensorUnits}));
    }
  }
  [[nodiscard]] std::uint16_t* units() const { return reinterpret_cast<std::uint16_t*>(memory); }
  [[nodiscard]] std::byte* data(std::size_t tensor) const {
    return memory + tensor * kTensorUnits * 2;
  }
};

class ModelSource final : public WeightSource {
 public:
  explicit ModelSource(const Model& model) : model_(model) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return model_.specs; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    std::vector<OfferedTensor> offered;
    for (std::size_t i = 0; i < kTensors; ++i) {
      offered.push_back({i, model_.data(i), MemoryKind::kDevice});
    }
    return use(offered);
  }

 private:
  const Model& model_;
};

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

void train(JobProcess& process, const Config& config) {
  Model model;
  PublisherOptions options = config.publisher;
  auto device = open_device(config);
  must(device.status());
  options.device = *device;
  auto group = process.group();
  must(group.status());
  auto road = process.sender(0, soon());
  must(road.status());
  ModelSource source(model);
  auto publisher = Publisher::open(options, **group, **road, nullptr, source);
  must(publisher.status());
  for (int version = 1; version <= kVersions; ++version) {
    step<<<2048, 256>>>(model.units(), kTensors * kTensorUnits,
                        static_cast<std::uint64_t>(version));
    must(cudaDeviceSynchronize());
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // time for the rollout to commit the last version
    const double begin = now_ms();
    const auto report = (*publisher)->publish(source);
    must(report.status());
    std::printf(
        "{\"nccl\": \"publish\", \"version\": %d, \"begin\": %.3f, \"end\": %.3f, \"process_ms\": "
        "%.3f, \"flush_ms\": %.3f, \"seal_ms\": %.3f, \"wire_bytes\": %llu, \"device_bytes\": "
        "%llu}\n",
        version, begin, now_ms(), report->process_ms - report->flush_ms, report->flush_ms,
        report->manifest_publish_ms, static_cast<unsigned long long>(report->wire_bytes),
        static_cast<unsigned long long>((*device)->device_bytes()));
    std::fflush(stdout);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  publisher->reset();
  road->reset();
  group->reset();
}

void roll_out(JobProcess& process, const Config& config) {
  Model model;
  std::vector<std::byte*> data;
  for (std::size_t i = 0; i < kTensors; ++i) data.push_back(model.data(i));
  auto layout = WeightLayout::make(model.specs);
  must(layout.status());
  auto road = process.receiver(soon());
  must(road.status());
  auto memory = make_device_memory(0);
  must(memory.status());
  auto target = make_memory_target(*layout, data, VersionId{}, 0, *memory);
  must(target.status());
  ReceiverOptions options = config.receiver;
  auto receiver = Receiver::open(options, **road, **target, soon());
  must(receiver.status());
  while ((*target)->state().id.version < kVersions) {
    const auto staged = (*receiver)->stage(soon());
    must(staged.status());
    if (!*staged) must(error(StatusCode::kDeadlineExceeded, "no version came"));
    const double ready = now_ms();
    const auto report = (*receiver)->commit();
    must(report.status());
    std::printf(
        "{\"nccl\": \"commit\", \"version\": %llu, \"ready\": %.3f, \"end\": %.3f, \"fetch_ms\": "
        "%.3f, \"stage_ms\": %.3f, \"apply_ms\": %.3f}\n",
        static_cast<unsigned long long>(report->version), ready, now_ms(), report->fetch_ms,
        report->stage_ms, report->apply_ms);
    std::fflush(stdout);
  }
  must((*receiver)->leave());
  receiver->reset();
  target->reset();
  road->reset();
}

}  // namespace

int main(int argc, char** argv) {
  const bool trains = argc > 1 && std::strcmp(argv[1], "trainer") == 0;
  setenv("NCCL_HOSTID", trains ? "trainer" : "rollout", 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  const auto config = parse_config(
      "snapshot: device\nencoding: deltas\nroad: {kind: nccl, nccl: {arrival: device}}\n",
      "the benchmark's configuration", {});
  must(config.status());
  auto process = join_job(road_table(), *config, trains ? JobRole::kTrainer : JobRole::kRollout,
                          Launch{.mpi = true});
  must(process.status());
  if (trains) {
    train(**process, *config);
  } else {
    roll_out(**process, *config);
  }
  must((*process)->close(soon()));
}
