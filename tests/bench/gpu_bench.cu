// SPDX-License-Identifier: Apache-2.0
// Measures the GPU's kernels, each relative to a floor: the time of only moving the same bytes,
// measured in the same run. Prints one JSON line per figure: {"work", "ms", "floor", "floor_ms",
// "ratio", "bytes"}. tests/gpu/run.sh makes a table of them.
//
//   gpu_bench [--only PART]
//
// PART: diff, capture, patch, digest, sweep, overwrite, compact, quantize or pinned
#include "gpu_bench.cuh"
#include "plugin/device/slice_differ.h"

using namespace driftless;
using namespace driftless::bench;

namespace {

__global__ void mask_out(std::uint16_t* source, const std::uint16_t* before,
                         const std::uint16_t* after, std::uint64_t count, std::uint16_t sentinel) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    source[i] = before[i] == after[i] ? sentinel : after[i] == sentinel ? 1 : after[i];
  }
}

void bench_diff(Bench& bench) {
  const Cut few(bench, 24, false), many(bench, 20000, true);
  bench.set_changed(10000);
  bench.make_room(kUnits / 50);
  Diff diff(few, bench.room);
  const auto both = [&](std::uint64_t changed, double position) {
    return kUnits * 4.0 + static_cast<double>(changed) * (2 + position);
  };
  double ms = diff.time(bench, few, cuda::PositionCoding::kIndices);
  const std::uint64_t changed = diff.batch->results().changed;
  print("diff, positions + values, 1 %", ms, "read both", bench.read_both, both(changed, 4));
  const double gaps = diff.time(bench, few, cuda::PositionCoding::kGaps);
  print("diff, gaps + values, 1 %", gaps, "read both", bench.read_both, both(changed, 2));
  {
    Diff batched(many, bench.room);
    ms = batched.time(bench, many, cuda::PositionCoding::kGaps);
    print("diff, gaps, 20000 tensors, 1 %", ms, "the 24", gaps, both(changed, 2));
  }
  bench.set_changed(1000);
  ms = diff.time(bench, few, cuda::PositionCoding::kGaps);
  print("diff, gaps, 0.1 %", ms, "read both", bench.read_both,
        both(diff.batch->results().changed, 2));
  for (const std::uint32_t per_million : {100'000U, 1'000'000U}) {
    bench.set_changed(per_million);
    bench.make_room(kUnits / 1'000'000 * per_million + kUnits / 100);
    Diff dense(few, bench.room);
    ms = dense.time(bench, few, cuda::PositionCoding::kGaps);
    print(per_million == 100'000 ? "diff, gaps, 10 %" : "diff, gaps, 100 %", ms, "read both",
          bench.read_both, both(dense.batch->results().changed, 2));
  }
}

__global__ void widen(std::uint32_t* values, const std::uint16_t* units, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    values[i] = f32_of_bf16(units[i]) + static_cast<std::uint32_t>(mix(i) % 0x7000);
  }
}

// Captures float32 main weights over bfloat16 weights. NaNs among the random bits count as changes.
void bench_capture(Bench& bench) {
  bench.set_changed(10000);
  bench.make_room(kUnits / 25);
  Cut few(bench, 24, false);
  std::byte* const main_weights = device(kUnits * 4);
  widen<<<2048, 256>>>(reinterpret_cast<std::uint32_t*>(main_weights), Bench::units(bench.after),
                       kUnits);
  must(cudaDeviceSynchronize());
  std::vector<cuda::CaptureBatch::Tensor> tensors;
  for (const cuda::DiffBatch::Tensor& tensor : few.tensors) {
    tensors.push_back({tensor.old_dev, main_weights + (tensor.old_dev - bench.before) * 2});
  }
  const cuda::Workspace work = Diff::allocate(cuda::CaptureBatch::workspace_size(few.units, 2));
  auto batch = cuda::CaptureBatch::make(few.units, 2, ValueCast::kF32ToBF16, work, nullptr);
  must(batch.status());
  std::byte* const old_values = device(bench.room * 2);
  const cuda::CaptureBatch::Slots slots{reinterpret_cast<std::uint16_t*>(bench.positions),
                                        bench.values, old_values, bench.room};
  const double ms = time_ms([&] { must(batch->run(tensors, slots, nullptr)); });
  std::uint64_t changed = 0;
  must(cudaMemcpy(&changed, batch->changed_dev(), sizeof(changed), cudaMemcpyDeviceToHost));
  print("capture, float32 to bfloat16, 1 %", ms, "read both", bench.read_both * 1.5,
        kUnits * 6.0 + static_cast<double>(changed) * 6);
  cudaFree(old_values);
  cudaFree(main_weights);
}

void bench_patch(Bench& bench) {
  const Cut few(bench, 24, false);
  bench.set_changed(10000);
  bench.make_room(kUnits / 50);
  Diff diff(few, bench.room);
  for (const auto coding : {cuda::PositionCoding::kIndices, cuda::PositionCoding::kGaps}) {
    must(diff.batch->run(few.tensors, coding, bench.positions, bench.values, nullptr));
    must(cudaDeviceSynchronize());
    std::vector<cuda::Patch::Tensor> tensors;
    for (std::size_t i = 0; i < few.units.size(); ++i) {
      tensors.push_back({const_cast<std::byte*>(few.tensors[i].old_dev), few.units[i],
                         diff.batch->results().entries[i], digest_tensor_key(std::to_string(i))});
    }
    const cuda::Workspace work = Diff::allocate(cuda::Patch::workspace_size(tensors));
    const std::string name = coding == cuda::PositionCoding::kGaps ? "gaps" : "positions";
    Result<cuda::Patch> patch =
        cuda::Patch::make(tensors, 2, coding, bench.positions, work, nullptr);
    must(patch.status());
    const double changed = static_cast<double>(diff.batch->results().changed);
    const double ms = time_ms([&] { must(patch->scatter(bench.values, nullptr)); });
    print("scatter from " + name, ms, "read both", bench.read_both, changed * 68);
    const double prepared = time_ms([&] {
      const Result<cuda::Patch> again =
          cuda::Patch::make(tensors, 2, coding, bench.positions, work, nullptr);
      must(again.status());
      must(again->scatter(bench.values, nullptr));
    });
    print("check + scatter from " + name, prepared, "read both", bench.read_both, changed * 70);
    std::byte* const old_values = device(bench.room * 2);
    auto* const sums = reinterpret_cast<std::uint64_t*>(
        device(tensors.size() * cuda::kDigestSums * sizeof(std::uint64_t)));
    const double gathered = time_ms([&] { must(patch->gather(old_values, nullptr)); });
    print("gather by " + name, gathered, "read both", bench.read_both, changed * 36);
    const double summed =
        time_ms([&] { must(patch->digest_changes(old_values, bench.values, sums, nullptr)); });
    print("digest of the change, " + name, summed, "read both", bench.read_both, changed * 6);
    cudaFree(old_values);
    fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);  // as it was
  }
}

void bench_digest(Bench& bench) {
  const Cut few(bench, 24, false);
  std::vector<cuda::DigestPiece> pieces;
  for (std::size_t i = 0; i < few.units.size(); ++i) {
    pieces.push_back(
        {few.tensors[i].old_dev, few.units[i] * 2, 0, digest_tensor_key(std::to_string(i))});
  }
  const cuda::Workspace work = Diff::allocate(cuda::digest_workspace_size(pieces));
  auto* const sums = reinterpret_cast<std::uint64_t*>(device(256));
  const double ms = time_ms([&] { must(cuda::digest(pieces, work, sums, nullptr)); });
  print("digest, full sweep", ms, "read one", bench.read_one, kUnits * 2.0);
}

// The weights of one of two tensor-parallel ranks: it holds rows of fused projections, and columns
// of the others. The floor is reading the same number of bytes once.
void bench_sweep(Bench& bench) {
  std::vector<cuda::DigestMap> parts;
  std::uint64_t at = 0;
  const auto add = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t of_columns) {
    const std::uint64_t first = of_columns == columns ? rows * columns : columns;
    const std::uint64_t units = 2 * rows * (of_columns == columns ? columns : of_columns);
    const auto map = StridedMap::make({first, {rows, columns}, {of_columns, 1}}, units,
                                      {at, {rows, columns}, {columns, 1}}, kUnits);
    must(map.status());
    const auto slot = static_cast<std::uint32_t>(parts.size());
    parts.push_back(
        {*map, bench.before, ValueCast::kNone, digest_tensor_key(std::to_string(slot)), slot});
    at += rows * columns;
  };
  for (int layer = 0; layer < 11; ++layer) {
    for (const std::uint64_t rows : {2048, 512, 512}) add(rows, 4096, 4096);  // q, k, v
    add(4096, 2048, 4096);                                                    // o
    for (const std::uint64_t rows : {6144, 6144}) add(rows, 4096, 4096);      // gate, up
    add(4096, 6144, 12288);                                                   // down
  }
  const cuda::Workspace work = Diff::allocate(cuda::MapSweep::workspace_size(parts, 2));
  const auto sweep = cuda::MapSweep::make(parts, 2, work, nullptr);
  must(sweep.status());
  auto* const sums = reinterpret_cast<std::uint64_t*>(
      device(parts.size() * cuda::kDigestMapSums * sizeof(std::uint64_t)));
  const double ms = time_ms([&] { must(sweep->sum(sums, nullptr)); });
  const double share = static_cast<double>(at) / static_cast<double>(kUnits);
  print("sweep of a fused, sliced module of " + std::to_string(at / 1'000'000) + " M elements", ms,
        "read as much", bench.read_one * share, static_cast<double>(at) * 2);
  cudaFree(sums);
}

void bench_overwrite(Bench& bench) {
  bench.set_changed(10000);
  std::byte* const source = device(kUnits * 2);
  mask_out<<<2048, 256>>>(Bench::units(source), Bench::units(bench.before),
                          Bench::units(bench.after), kUnits, 0x7fc1);
  auto* const written = reinterpret_cast<std::uint64_t*>(device(256));
  const double ms = time_ms([&] {
    must(cuda::masked_overwrite(bench.before, source, kUnits, 2, 0x7fc1, written, nullptr));
  });
  print("masked overwrite", ms, "read one", bench.read_one, kUnits * 2.0);
  cudaFree(source);
  fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);
}

// The old side in pinned host memory, as a publisher streams it; the floor is the copy alone.
void bench_pinned(Bench& bench) {
  bench.set_changed(10000);
  std::byte* const snapshot = pinned(kUnits * 2);
  must(cudaMemcpy(snapshot, bench.before, kUnits * 2, cudaMemcpyDeviceToHost));
  std::byte* const arrival = device(kUnits * 2);
  const double copy = time_ms(
      [&] { must(cudaMemcpyAsync(arrival, snapshot, kUnits * 2, cudaMemcpyHostToDevice)); }, 5);
  cudaFree(arrival);
  Result<DeviceStream> stream = DeviceStream::make();
  must(stream.status());
  SliceDiffer differ;
  must(differ.open(*stream));
  constexpr std::uint64_t kSlice = std::uint64_t{256} << 20;
  const double ms = time_ms(
      [&] {
        std::uint64_t changed = 0;
        const auto take = [&] {
          const Result<SliceResults> found = differ.take();
          must(found.status());
          changed += found->changed;
          must(differ.release());
        };
        for (std::uint64_t at = 0; at < kUnits; at += kSlice / 2) {
          SlicePiece piece;
          piece.first_unit = at;
          piece.units = std::min(kSlice / 2, kUnits - at);
          piece.old_data = snapshot + at * 2;
          piece.new_data = bench.after + at * 2;
          piece.old_kind = MemoryKind::kHost;
          if (at >= kSlice) take();
          must(differ.start({piece}, 2, cuda::PositionCoding::kGaps));
        }
        while (differ.pending()) take();
        if (changed < kUnits / 200) std::exit(1);
      },
      5);
  print("diff, snapshot in pinned memory", ms, "copying it over", copy, kUnits * 4.0);
  cudaFreeHost(snapshot);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc == 3 && std::string(argv[1]) == "--only" ? argv[2] : "";
  const std::pair<std::string, void (*)(Bench&)> parts[] = {
      {"diff", bench_diff},       {"capture", bench_capture},   {"patch", bench_patch},
      {"digest", bench_digest},   {"sweep", bench_sweep},       {"overwrite", bench_overwrite},
      {"compact", bench_compact}, {"quantize", bench_quantize}, {"captured", bench_captured},
      {"pinned", bench_pinned}};
  const bool known = std::any_of(std::begin(parts), std::end(parts),
                                 [&](const auto& part) { return part.first == only; });
  if (argc != 1 && !known) {
    std::fprintf(stderr, "usage: gpu_bench [--only PART], a part as the source names them\n");
    return 2;
  }
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"gpu\": \"%s\"}\n", properties.name);
  Bench bench;
  fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);
  bench.set_changed(10000);
  bench.floors();
  for (const auto& [name, run] : parts) {
    if (only.empty() || only == name) run(bench);
  }
}
