// SPDX-License-Identifier: Apache-2.0
// gpu_bench: encoding and decoding `compact`.
#include <tuple>

#include "gpu_bench.cuh"
#include "kernels/cuda/compact.h"

namespace driftless::bench {
namespace {

// Makes weights like those after a training step: random magnitudes below 2^-5. Small weights are
// more likely to change, each by one ULP; 1 % of all weights change.
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
}  // namespace

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
    const std::uint64_t block_tiles = table.fields.tiles(few.units[i]);
    for (const std::size_t end = t + block_tiles; t < end; ++t) bytes += tiles[t].bytes;
  }
  std::fprintf(stderr, "compact: %.2f %% changed, %.2f bits per change\n", 100 * changed / kUnits,
               8 * static_cast<double>(bytes) / changed);
  print("compact: diff + encode", encoded, "read both", bench.read_both,
        kUnits * 4.0 + static_cast<double>(bytes));
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

}  // namespace driftless::bench
