// SPDX-License-Identifier: Apache-2.0
// Measures quantizing bfloat16 weights on the GPU: alone, before a comparison, and after a capture.
// Also measures a commit into a module of FP8 codes and scales.
#include <chrono>
#include <deque>
#include <memory>

#include "core/block_place.h"
#include "gpu_bench.cuh"
#include "kernels/cuda/quantize.h"
#include "plugin/device/device_factories.h"

namespace driftless::bench {
namespace {

constexpr std::uint64_t kMatrices = 24, kRows = 127 * 128, kColumns = 4096;
constexpr std::uint64_t kElements = kRows * kColumns;  // of each
constexpr std::uint64_t kBlocks = kRows / 128 * (kColumns / 128);
static_assert(kMatrices * kElements <= kUnits);
constexpr double kAll = static_cast<double>(kMatrices * kElements);

// Fills in typical magnitudes of weights: 2^-11 to 2^-5.
__global__ void fill_weights(std::uint16_t* units, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i);
    units[i] = static_cast<std::uint16_t>(0x3a00 + random % 0x300 + (random >> 63 << 15));
  }
}

struct Matrices {
  std::vector<cuda::QuantizePart> parts;
  cuda::Workspace work;

  // `codes`: null to compute only the largest weight of each block.
  Matrices(std::byte* weights, std::byte* codes, std::uint16_t* largest) {
    for (std::uint64_t m = 0; m < kMatrices; ++m) {
      parts.push_back({{kRows, kColumns, kColumns, 0, 0},
                       weights + m * kElements * 2,
                       largest + m * kBlocks,
                       codes == nullptr ? nullptr : codes + m * kElements});
    }
    work = Diff::allocate(cuda::quantize_workspace_size(parts));
  }
  ~Matrices() {
    cudaFree(work.dev);
    cudaFreeHost(work.host);
  }
  // Quantizes like a publisher: clears the largest weights of the blocks first.
  void run(QuantizeRule rule) const {
    must(cudaMemsetAsync(parts[0].largest_dev, 0, kMatrices * kBlocks * 2));
    must(cuda::quantize(rule, parts, work, nullptr));
  }
};

void bench_rules(const Bench& bench, const Matrices& now) {
  const double floor = bench.read_both * 0.75 * kAll / static_cast<double>(kUnits);
  for (const auto& [rule, name] :
       {std::pair(QuantizeRule::kLinear, "linear"), std::pair(QuantizeRule::kUe8m0, "ue8m0"),
        std::pair(QuantizeRule::kLinearDiv, "linear_div")}) {
    const double ms = time_ms([&] { now.run(rule); });
    print(std::string("quantize, ") + name, ms, "reading 3 bytes an element", floor, kAll * 3);
  }
}

// Compares the codes with those of the last version, as a publisher with a snapshot does.
void bench_compare(Bench& bench, const Matrices& now, std::byte* old_codes, std::byte* codes) {
  std::vector<std::uint64_t> units(kMatrices, kElements);
  std::vector<cuda::DiffBatch::Tensor> tensors;
  for (std::uint64_t m = 0; m < kMatrices; ++m) {
    tensors.push_back({old_codes + m * kElements, codes + m * kElements});
  }
  const cuda::Workspace work =
      Diff::allocate(cuda::DiffBatch::workspace_size(units, 1, bench.room));
  auto diff = cuda::DiffBatch::make(units, 1, bench.room, work, nullptr);
  must(diff.status());
  const auto compare = [&] {
    must(diff->run(tensors, cuda::PositionCoding::kGaps, bench.positions, bench.values, nullptr));
  };
  const double share = kAll / static_cast<double>(kUnits);
  const double alone = time_ms(compare);
  print("diff of codes, gaps", alone, "reading both codes", bench.read_both * share / 2, kAll * 2);
  const double ms = time_ms([&] {
    now.run(QuantizeRule::kLinear);
    compare();
  });
  const std::uint64_t changed = diff->results().changed;
  if (changed > bench.room) std::exit(1);
  print("compare + quantize, linear, 1 % of bf16", ms, "read both", bench.read_both * share,
        kAll * 5 + static_cast<double>(changed) * 3);
  std::printf("{\"codes_changed\": %.6f}\n", static_cast<double>(changed) / kAll);
  cudaFree(work.dev);
  cudaFreeHost(work.host);
}

__global__ void widen_weights(std::uint32_t* values, const std::uint16_t* units,
                              std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    values[i] = f32_of_bf16(units[i]) + static_cast<std::uint32_t>(mix(i) % 0x7000);
  }
}

// Without a snapshot the GPU's only work beside the capture is to find the largest weight again in
// each block whose largest weight became smaller.
void bench_captured(Bench& bench, std::uint16_t* largest) {
  std::byte* const main_weights = device(kUnits * 4);
  widen_weights<<<2048, 256>>>(reinterpret_cast<std::uint32_t*>(main_weights),
                               Bench::units(bench.after), kUnits);
  must(cudaDeviceSynchronize());
  const std::vector<std::uint64_t> units(kMatrices, kElements);
  std::vector<cuda::CaptureBatch::Tensor> tensors;
  std::vector<cuda::QuantizePart> fell;
  for (std::uint64_t m = 0; m < kMatrices; ++m) {
    std::byte* const weights = bench.before + m * kElements * 2;
    tensors.push_back({weights, main_weights + m * kElements * 4});
    for (std::uint64_t block = 0; block < kBlocks; block += 100) {
      const std::uint64_t at =
          block / (kColumns / 128) * 128 * kColumns + block % (kColumns / 128) * 128;
      fell.push_back(
          {{128, 128, kColumns, 0, 0}, weights + at * 2, largest + fell.size(), nullptr});
    }
  }
  const cuda::Workspace work = Diff::allocate(cuda::CaptureBatch::workspace_size(units, 2));
  const cuda::Workspace scan = Diff::allocate(cuda::quantize_workspace_size(fell));
  auto batch = cuda::CaptureBatch::make(units, 2, ValueCast::kF32ToBF16, work, nullptr);
  must(batch.status());
  std::byte* const old_values = device(bench.room * 2);
  const cuda::CaptureBatch::Slots slots{reinterpret_cast<std::uint16_t*>(bench.positions),
                                        bench.values, old_values, bench.room};
  const auto capture = [&] { must(batch->run(tensors, slots, nullptr)); };
  const double alone = time_ms(capture);
  const double ms = time_ms([&] {
    capture();
    must(cuda::quantize(QuantizeRule::kLinear, fell, scan, nullptr));
  });
  print("capture + measuring 1 % of the blocks", ms, "the capture alone", alone, kAll * 6);
  for (std::byte* const memory : {work.dev, scan.dev, old_values, main_weights}) cudaFree(memory);
  cudaFreeHost(work.host);
  cudaFreeHost(scan.host);
}

// 15 matrices of codes and their scales on the GPU, of which some units change.
class Module {
 public:
  static constexpr std::uint64_t kHeld = 15, kCodes = 1'700'000, kScales = 100;

  Module() {
    auto memory = make_device_memory(0);
    must(memory.status());
    memory_ = *memory;
    for (std::uint64_t m = 0; m < kHeld; ++m) {
      add(concat("m", m, ".weight"), DType::kF8E4M3, {kRows, kColumns}, kCodes / kHeld);
      add(concat("m", m, ".weight_scale_inv"), DType::kF32, {kRows / 128, kColumns / 128},
          m < kHeld - 1 ? 7 : kScales - 7 * (kHeld - 1));
    }
  }
  // The time of a commit, in ms: from the last token of the old version to the first of the new
  // one.
  double commit() {
    std::vector<ChangePart> parts;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::size_t tensor = pieces_[i].tensor;
      ChangePart part = part_of(pieces_[i], maps_[tensor]);
      part.key = &keys_[tensor];
      parts.push_back(part);
    }
    auto placed = memory_->place(parts, 8);
    must(placed.status());
    must(cudaDeviceSynchronize());
    const auto begin = std::chrono::steady_clock::now();
    const auto fault = (*placed)->write();
    const auto end = std::chrono::steady_clock::now();
    must(fault.status());
    if (fault->has_value()) {
      std::fprintf(stderr, "a staged part differs from the expected one\n");
      std::exit(1);
    }
    must((*placed)->take_back());
    return std::chrono::duration<double, std::milli>(end - begin).count();
  }

 private:
  void add(const std::string& name, DType dtype, const std::vector<std::uint64_t>& shape,
           std::uint64_t changes) {
    const auto spec = TensorSpec::make(name, dtype, shape);
    must(spec.status());
    const auto place = place_of(*spec, TensorBox());
    must(place.status());
    auto held = memory_->allocate(spec->size_bytes);  // zeroed
    must(held.status());
    const auto map = map_of(*place, spec->units());
    must(map.status());
    WeightMap& to = maps_.emplace_back();
    to.tensor = static_cast<std::uint32_t>(maps_.size() - 1);
    to.data = held->get();
    to.unit_bytes = unit_bytes(dtype);
    to.map = *map;
    held_.push_back(*held);
    keys_.push_back(digest_tensor_key(name));
    const std::uint64_t step = spec->units() / changes;
    for (std::uint64_t first = 0; first < changes; first += kMaxPieceUnits) {
      const auto count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxPieceUnits, changes - first));
      auto& offsets = offsets_.emplace_back(count);
      auto& values = values_.emplace_back(std::uint64_t{count} * to.unit_bytes);
      for (std::uint32_t k = 0; k < count; ++k) offsets[k] = static_cast<std::uint32_t>(k * step);
      std::fill(values.begin(), values.end(), std::byte{0x31});
      pieces_.push_back({to.tensor, count, first * step, offsets.data(), values.data(), nullptr});
    }
  }

  std::shared_ptr<WeightMemory> memory_;
  std::deque<std::vector<std::uint32_t>> offsets_;
  std::deque<std::vector<std::byte>> values_;
  std::deque<WeightMap> maps_;
  std::deque<DigestTensorKey> keys_;
  std::vector<std::shared_ptr<std::byte>> held_;
  std::vector<DeltaPiece> pieces_;
};

void bench_commit() {
  constexpr double kAsked = 0.8;  // ms
  Module module;
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const double ms = module.commit();
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  print("commit of 1.7 M codes and 100 scales", times[times.size() / 2], "what is asked", kAsked,
        Module::kCodes * 64.0);
  std::printf("{\"commit_ms\": [%.4f, %.4f]}\n", times.front(), times.back());
}

}  // namespace

void bench_quantize(Bench& bench) {
  fill_weights<<<2048, 256>>>(Bench::units(bench.before), kUnits);
  bench.set_changed(10000);
  bench.make_room(kUnits / 25);
  std::byte* const old_codes = device(kMatrices * kElements);
  std::byte* const codes = device(kMatrices * kElements);
  auto* const largest = reinterpret_cast<std::uint16_t*>(device(kMatrices * kBlocks * 2));
  const Matrices before(bench.before, old_codes, largest), now(bench.after, codes, largest);
  before.run(QuantizeRule::kLinear);
  must(cudaDeviceSynchronize());
  bench_rules(bench, now);
  bench_compare(bench, now, old_codes, codes);
  bench_captured(bench, largest);
  bench_commit();
  cudaFree(old_codes);
  cudaFree(codes);
  cudaFree(largest);
  fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);  // as it was
  must(cudaDeviceSynchronize());
}

}  // namespace driftless::bench
