// SPDX-License-Identifier: Apache-2.0
// Whole versions of a publisher that captures its changes, with weights on the GPU: published as
// bfloat16, and quantized into FP8 blocks. Both get the same changes.
//
// The trainer's step contains capture() and observe(). The rest of a version, publish(), runs
// behind the next step; for FP8 the host's threads also code the changed weights there.
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "formats/safetensors.h"
#include "gpu_bench.cuh"
#include "kernels/cuda/quantize.h"
#include "plugin/device/device_factories.h"
#include "plugin/publish/publisher.h"
#include "support/loopback_road.h"

namespace driftless::bench {
namespace {

constexpr std::uint64_t kMatrices = 24, kRows = 127 * 128, kColumns = 4096;
constexpr std::uint64_t kElements = kRows * kColumns;
constexpr std::uint64_t kBlocks = kRows / 128 * (kColumns / 128);
static_assert(kMatrices * kElements <= kUnits);
constexpr double kAll = static_cast<double>(kMatrices * kElements);
constexpr int kVersions = 7, kWarm = 2;

// Nearly normal, as weights are: a block has few weights near its largest.
__device__ std::uint32_t weight_of(std::uint64_t random) {
  float sum = -127.5F * 8;
  for (int i = 0; i < 8; ++i) sum += static_cast<float>(random >> (8 * i) & 0xff);
  return __float_as_uint(sum * 1e-4F);
}

__global__ void fill_normal(std::uint16_t* units, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    units[i] = static_cast<std::uint16_t>(weight_of(mix(i + 1)) >> 16);
  }
}

// An optimizer's new values: about 1 % of the weights change by one to three units in the last
// place; large weights seldom do, because a step is small beside their units.
__global__ void step_values(std::uint32_t* values, const std::uint16_t* units, std::uint64_t count,
                            std::uint64_t seed) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i * 3 + seed * 0x9e3779b97f4a7c15ULL);
    const bool large = (units[i] & 0x7fffU) > 0x3d80U;  // 0.0625: three deviations
    const bool changes = random % 100'000 < (large ? 10U : 1'050U);
    const std::uint32_t now = units[i] ^ (changes ? 1U + (random >> 62) : 0U);
    values[i] = now << 16 | static_cast<std::uint32_t>(random % 0x7000);
  }
}

__global__ void round_values(std::uint16_t* units, const std::uint32_t* values,
                             std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    units[i] = static_cast<std::uint16_t>(values[i] >> 16);  // the rest is below one half
  }
}

class Trainer final : public WeightSource {
 public:
  explicit Trainer(std::byte* weights)
      : weights_(weights), values_(device(kMatrices * kElements * 4)) {
    for (std::uint64_t m = 0; m < kMatrices; ++m) {
      specs_.push_back(*TensorSpec::make(name(m), DType::kBF16, {kRows, kColumns}));
    }
    fill_normal<<<2048, 256>>>(Bench::units(weights_), kMatrices * kElements);
    must(cudaDeviceSynchronize());
  }
  ~Trainer() override { cudaFree(values_); }
  static std::string name(std::uint64_t matrix) { return concat("m", 10 + matrix, ".weight"); }
  [[nodiscard]] std::byte* weights(std::uint64_t matrix) const {
    return weights_ + matrix * kElements * 2;
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return specs_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    std::vector<OfferedTensor> offered;
    for (std::uint64_t m = 0; m < kMatrices; ++m) {
      offered.push_back({m, weights(m), MemoryKind::kDevice});
    }
    return use(offered);
  }
  void make_values(std::uint64_t seed) const {
    step_values<<<2048, 256>>>(values(), Bench::units(weights_), kMatrices * kElements, seed);
    must(cudaDeviceSynchronize());
  }
  [[nodiscard]] std::vector<Publisher::NewTensor> new_values() const {
    std::vector<Publisher::NewTensor> all;
    for (std::uint64_t m = 0; m < kMatrices; ++m) {
      all.push_back({m, values_ + m * kElements * 4, DType::kF32, MemoryKind::kDevice});
    }
    return all;
  }
  void write() const {
    round_values<<<2048, 256>>>(Bench::units(weights_), values(), kMatrices * kElements);
    must(cudaDeviceSynchronize());
  }

 private:
  [[nodiscard]] std::uint32_t* values() const { return reinterpret_cast<std::uint32_t*>(values_); }

  std::byte* weights_;
  std::byte* values_;
  std::vector<TensorSpec> specs_;
};

// The trainer's weights as a base with FP8 blocks, in a directory of its own.
class Base {
 public:
  explicit Base(const Trainer& trainer)
      : path_("/dev/shm/driftless_gpu_bench." +
              std::to_string(std::chrono::steady_clock::now().time_since_epoch().count())) {
    std::filesystem::create_directories(path_);
    FileSystem& fs = posix_file_system();
    must(write_text(fs, path_ + "/config.json",
                    R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                        "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})"));
    auto file = SafetensorsWriter::create(fs, path_ + "/model.safetensors", 1 << 20);
    must(file.status());
    std::byte* const codes_dev = device(kElements);
    auto* const largest_dev = reinterpret_cast<std::uint16_t*>(device(kBlocks * 2));
    std::vector<std::byte> codes(kElements);
    std::vector<std::uint16_t> largest(kBlocks);
    for (std::uint64_t m = 0; m < kMatrices; ++m) {
      const cuda::QuantizePart part{
          {kRows, kColumns, kColumns, 0, 0}, trainer.weights(m), largest_dev, codes_dev};
      const cuda::Workspace work = Diff::allocate(cuda::quantize_workspace_size({&part, 1}));
      must(cudaMemset(largest_dev, 0, kBlocks * 2));
      must(cuda::quantize(QuantizeRule::kLinear, {&part, 1}, work, nullptr));
      must(cudaMemcpy(codes.data(), codes_dev, kElements, cudaMemcpyDeviceToHost));
      must(cudaMemcpy(largest.data(), largest_dev, kBlocks * 2, cudaMemcpyDeviceToHost));
      cudaFree(work.dev);
      cudaFreeHost(work.host);
      std::vector<float> scales;
      for (const std::uint16_t each : largest) {
        scales.push_back(fp8_scale(QuantizeRule::kLinear, each));
      }
      must(file->begin_tensor(Trainer::name(m), DType::kF8E4M3));
      must(file->append(codes));
      must(file->end_tensor({kRows, kColumns}));
      must(file->begin_tensor(Trainer::name(m) + "_scale_inv", DType::kF32));
      must(file->append(std::as_bytes(std::span(scales))));
      must(file->end_tensor({kRows / 128, kColumns / 128}));
    }
    must(file->finish().status());
    cudaFree(codes_dev);
    cudaFree(largest_dev);
  }
  ~Base() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

double processor_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Medians of a version: what the trainer waits for, what runs behind its next step, and the
// processor time of the latter.
struct Times {
  double step = 0, behind = 0, busy = 0, open_s = 0;
  std::uint64_t changed = 0;  // of the last version
};

// `base`: empty to publish bfloat16.
Times time_versions(std::byte* weights, bool quantized) {
  Trainer trainer(weights);
  std::unique_ptr<Base> base;
  PublisherOptions options;
  options.keep_snapshot = false;
  if (quantized) {
    base = std::make_unique<Base>(trainer);
    options.base_checkpoint = base->path();
  }
  DeviceOptions device_options;
  device_options.snapshot = SnapshotPlace::kNone;
  auto opened_device = make_publisher_device(device_options);
  must(opened_device.status());
  options.device = *opened_device;
  LoopbackOptions road_options;
  road_options.ring_bytes = std::uint64_t{4} << 30;
  road_options.ring_versions = 2;
  LoopbackHub hub(road_options, 1);
  const std::unique_ptr<Group> group = hub.group(0);
  const std::unique_ptr<SendRoad> road = hub.sender(0);
  const auto begin = std::chrono::steady_clock::now();
  auto publisher = Publisher::open(options, *group, *road, nullptr, trainer);
  must(publisher.status());
  Times times;
  times.open_s = ms_since(begin) / 1e3;
  std::vector<double> step, behind, busy;
  for (int version = 1; version <= kVersions; ++version) {
    trainer.make_values(static_cast<std::uint64_t>(version));
    const auto captured = std::chrono::steady_clock::now();
    must((*publisher)->capture(trainer.new_values()));
    must(cudaDeviceSynchronize());
    const double capture_ms = ms_since(captured);
    trainer.write();
    const auto observed = std::chrono::steady_clock::now();
    must((*publisher)->observe(trainer, nullptr, true));
    const double step_ms = capture_ms + ms_since(observed);
    const double busy_before = processor_ms();
    const auto published = std::chrono::steady_clock::now();
    const auto report = (*publisher)->publish(trainer);
    must(report.status());
    const double behind_ms = ms_since(published);
    if (report->encoding != Encoding::kDeltas || report->live.resent_tensors != 0) std::exit(1);
    times.changed = report->changed_units;
    if (version <= kWarm) continue;
    step.push_back(step_ms);
    behind.push_back(behind_ms);
    busy.push_back(processor_ms() - busy_before);
    std::printf(
        "{\"captured_version\": %d, \"fp8\": %s, \"step_ms\": %.3f, \"behind_ms\": %.2f, "
        "\"processor_ms\": %.1f, \"sweep_ms\": %.2f, \"compare_ms\": %.2f, \"encode_ms\": %.2f, "
        "\"send_ms\": %.2f, \"changed\": %llu, \"wire_bytes\": %llu}\n",
        version, quantized ? "true" : "false", step_ms, behind_ms, busy.back(),
        report->live.sweep_ms, report->stages.compare_ms, report->stages.encode_ms,
        report->stages.send_ms, static_cast<unsigned long long>(report->changed_units),
        static_cast<unsigned long long>(report->wire_bytes));
    std::fflush(stdout);
  }
  times.step = median(step);
  times.behind = median(behind);
  times.busy = median(busy);
  return times;
}

}  // namespace

void bench_captured(Bench& bench) {
  const Times plain = time_versions(bench.before, false);
  const Times blocks = time_versions(bench.before, true);
  print("a version with capture and FP8 blocks: the step's part", blocks.step,
        "the same in bfloat16", plain.step, kAll * 6);
  print("the same, behind the step", blocks.behind, "the same in bfloat16", plain.behind, kAll * 2);
  std::printf(
      "{\"captured\": {\"threads\": %u, \"bf16_changed\": %llu, \"fp8_changed\": %llu, "
      "\"bf16_processor_ms\": %.1f, \"fp8_processor_ms\": %.1f, \"bf16_open_s\": %.2f, "
      "\"fp8_open_s\": %.2f}}\n",
      std::thread::hardware_concurrency(), static_cast<unsigned long long>(plain.changed),
      static_cast<unsigned long long>(blocks.changed), plain.busy, blocks.busy, plain.open_s,
      blocks.open_s);
  fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);  // as it was
  must(cudaDeviceSynchronize());
}

}  // namespace driftless::bench
