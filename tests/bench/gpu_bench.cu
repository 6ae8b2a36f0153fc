// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels against floors measured in the same run. Prints one JSON line per figure:
// {"work", "ms", "floor", "floor_ms", "ratio", "bytes"}. tests/gpu/run.sh makes a table of them.
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

#include "kernels/cuda/compact.h"
#include "kernels/cuda/operations.h"
#include "plugin/device/slice_differ.h"

using namespace driftless;

namespace {

constexpr std::uint64_t kUnits = 1'600'000'000;  // bf16

void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}
void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

std::byte* device(std::uint64_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  return static_cast<std::byte*>(memory);
}
std::byte* pinned(std::uint64_t bytes) {
  void* memory = nullptr;
  must(cudaMallocHost(&memory, bytes));
  return static_cast<std::byte*>(memory);
}

// The median of several runs, in ms.
double time_ms(const std::function<void()>& work, int runs = 15) {
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

void print(const std::string& work, double ms, const std::string& floor, double floor_ms,
           double bytes) {
  std::printf(
      "{\"work\": \"%s\", \"ms\": %.4f, \"floor\": \"%s\", \"floor_ms\": %.4f, \"ratio\": %.3f, "
      "\"gigabytes\": %.3f}\n",
      work.c_str(), ms, floor.c_str(), floor_ms, ms / floor_ms, bytes / 1e9);
  std::fflush(stdout);
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
// Changes about `per_million` of a million units.
__global__ void change(std::uint16_t* units, const std::uint16_t* from, std::uint64_t count,
                       std::uint32_t per_million) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i * 3 + 1);
    const bool changes = random % 1'000'000 < per_million;
    units[i] = from[i] ^ (changes ? 1U + (random >> 60) : 0U);
  }
}
// As weights are after a step: magnitudes even below 2^-5, of which one changes by one unit the
// likelier the smaller it is. Changes 1 % in all.
__global__ void fill_weights(std::uint16_t* before, std::uint16_t* after, std::uint64_t count) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    const std::uint64_t random = mix(i), other = mix(i * 3 + 1);
    const int octave = min(__clzll(static_cast<long long>(random)), 12);
    const auto exponent = static_cast<std::uint32_t>(121 - octave);
    const auto bits = static_cast<std::uint16_t>((random & 0x807f) | (exponent << 7));
    const double likely = fmin(0.0016 * exp2(static_cast<double>(octave)), 1.0);
    const bool changes = static_cast<double>(other >> 11) * 0x1p-53 < likely;
    before[i] = bits;
    after[i] = changes ? static_cast<std::uint16_t>(bits ^ 1) : bits;
  }
}
__global__ void mask_out(std::uint16_t* source, const std::uint16_t* before,
                         const std::uint16_t* after, std::uint64_t count, std::uint16_t sentinel) {
  for (std::uint64_t i = blockIdx.x * 256ULL + threadIdx.x; i < count; i += gridDim.x * 256ULL) {
    source[i] = before[i] == after[i] ? sentinel : after[i] == sentinel ? 1 : after[i];
  }
}

// The floor: 16-byte loads of everything, and one word out of it.
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

// Tensors of these sizes over the same memory, each at a multiple of 256 bytes.
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
      auto own = static_cast<std::uint64_t>(static_cast<double>(kUnits) * weight / sum);
      const std::uint64_t padded = own / 128 * 128;
      if (mixed && padded > 200) own = padded - random() % 120;
      units.push_back(mixed ? own : padded);
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

// A rank of two: fused projections are rows of their tensors, others are columns of them. The floor
// is reading as many bytes once.
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

void bench_compact(Bench& bench) {
  const Cut few(bench, 24, false);
  fill_weights<<<2048, 256>>>(Bench::units(bench.before), Bench::units(bench.after), kUnits);
  bench.make_room(kUnits / 50);
  Diff diff(few, bench.room);
  std::ignore = diff.time(bench, few, cuda::PositionCoding::kIndices);
  const auto changed = static_cast<double>(diff.batch->results().changed);
  const CompactFields fields = *compact_fields(DType::kBF16);
  std::vector<cuda::CompactBlock> blocks(few.units.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].old_dev = few.tensors[i].old_dev;
    blocks[i].place = BlockPlace::all(few.units[i]);
    blocks[i].entry = diff.batch->results().entries[i];
  }
  const cuda::Workspace work =
      Diff::allocate(cuda::CompactEncode::workspace_size(blocks, fields, 1));
  std::byte* const streams = device(bench.room * 8);
  std::vector<CompactTile> tiles;
  CompactTable table;
  const auto encode = [&] {
    auto encoder =
        cuda::CompactEncode::make(blocks, fields, 1, bench.positions, bench.values, work, nullptr);
    must(encoder.status());
    must(cudaDeviceSynchronize());
    table = make_compact_table(fields, encoder->counts());
    must(encoder->size(std::span(&table, 1), nullptr));
    must(cudaDeviceSynchronize());
    const auto sizes = encoder->tiles();
    must(sizes.status());
    tiles.assign(sizes->begin(), sizes->end());
    must(encoder->run(streams, nullptr));
  };
  const double encoded = time_ms([&] {
    must(diff.batch->run(few.tensors, cuda::PositionCoding::kIndices, bench.positions, bench.values,
                         nullptr));
    must(cudaDeviceSynchronize());
    encode();
  });
  std::uint64_t bytes = 0;
  for (std::size_t i = 0, t = 0; i < blocks.size(); ++i) {
    blocks[i].stream_begin = bytes;
    const std::uint64_t own = (few.units[i] + kCompactTileUnits - 1) / kCompactTileUnits;
    for (const std::size_t end = t + own; t < end; ++t) bytes += tiles[t].bytes;
  }
  const double bits = 8 * static_cast<double>(bytes) / changed;
  char text[80];
  std::snprintf(text, sizeof(text), "compact: diff + encode, %.2f %%, %.2f bits per change",
                100 * changed / kUnits, bits);
  print(text, encoded, "read both", bench.read_both, kUnits * 4.0 + static_cast<double>(bytes));
  const std::span tables(&table, 1);
  const cuda::Workspace room = Diff::allocate(cuda::CompactDecode::workspace_size(blocks, tables));
  std::byte* const old_values = device(bench.room * 2);
  std::vector<cuda::Patch::Tensor> tensors;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    tensors.push_back({const_cast<std::byte*>(few.tensors[i].old_dev), few.units[i],
                       blocks[i].entry, digest_tensor_key(std::to_string(i))});
  }
  const cuda::Workspace patching = Diff::allocate(cuda::Patch::workspace_size(tensors));
  auto* const sums = reinterpret_cast<std::uint64_t*>(
      device(tensors.size() * cuda::kDigestSums * sizeof(std::uint64_t)));
  for (const bool staged : {false, true}) {
    const double decoded = time_ms([&] {
      auto decoder = cuda::CompactDecode::make(blocks, tables, tiles, room, nullptr);
      must(decoder.status());
      must(decoder->run(streams, bench.positions, bench.values, old_values, nullptr));
      if (!staged) return;
      const auto patch = cuda::Patch::make(tensors, 2, cuda::PositionCoding::kIndices,
                                           bench.positions, patching, nullptr);
      must(patch.status());
      must(patch->digest_changes(old_values, bench.values, sums, nullptr));
      must(cudaDeviceSynchronize());
      must(decoder->check());
      must(patch->check());
    });
    print(staged ? "compact: decode into a staged update" : "compact: decode", decoded, "read both",
          bench.read_both, kUnits * 2.0 + static_cast<double>(bytes));
  }
  for (std::byte* const memory : {streams, old_values, reinterpret_cast<std::byte*>(sums)}) {
    cudaFree(memory);
  }
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

int main() {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"gpu\": \"%s\"}\n", properties.name);
  Bench bench;
  fill<<<2048, 256>>>(Bench::units(bench.before), kUnits);
  bench.set_changed(10000);
  bench.floors();
  bench_diff(bench);
  bench_patch(bench);
  bench_digest(bench);
  bench_sweep(bench);
  bench_overwrite(bench);
  bench_compact(bench);
  bench_pinned(bench);
}
