// SPDX-License-Identifier: Apache-2.0
// Measures `compact` on a recorded RL run: bits per changed weight, container included, and the
// speed of encoding and decoding on one core, relative to reading the weights once. Prints a table
// in Markdown with a row for each step and one for all steps.
//
//     compact_bench TRACE [repeats]
//     compact_bench TRACE tables
//
// With `tables`: counts how many bytes of a publisher's frames are coding tables, and how many
// bytes other tables would save if they took no space: a table for each tensor, made from all of
// its units; the table of the step before, completed; or for each tensor the better of the two.
//
// TRACE is a directory as for `driftless bench --trace`, with bf16 tensors. A step is one frame
// with one table. Encoding starts from the changes, and includes the counts for the table, the
// tiles, the digest of the change, and the frame with its hashes. Decoding includes all checks up
// to the digest.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/stopwatch.h"
#include "formats/frame.h"
#include "formats/safetensors.h"
#include "kernels/compact_ops.h"
#include "plugin/checkpoint/compact_writer.h"

namespace driftless {
namespace {

using Bytes = std::vector<std::byte>;

struct Tensor {
  std::uint32_t index = 0;
  Bytes weights;
  std::vector<std::uint32_t> offsets;  // of this step's changes
  Bytes values, old_values;
};

constexpr std::uint64_t kStretch = 64 * std::uint64_t{kCompactTileUnits};
const CompactFields kFields = *compact_fields(DType::kBF16);

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
  std::exit(1);
}
void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

struct Step {
  WeightLayout layout;
  std::vector<Tensor> tensors;
};

// The shortest of several runs, in seconds.
double seconds(unsigned repeats, const std::function<void()>& work) {
  double least = 1e9;
  for (unsigned i = 0; i < repeats; ++i) {
    Stopwatch watch;
    work();
    least = std::min(least, watch.lap_ms() / 1000);
  }
  return least;
}

void load_step(const SafetensorsFile& trace, unsigned number, Step& step) {
  std::array<char, 16> prefix{};
  std::snprintf(prefix.data(), prefix.size(), "s%03u/", number);
  for (Tensor& tensor : step.tensors) {
    const std::string key = prefix.data() + step.layout[tensor.index].name;
    const SafetensorsEntry* const indices = trace.find(key + ".indices");
    const SafetensorsEntry* const values = trace.find(key + ".values");
    tensor.offsets.clear();
    tensor.values.clear();
    if (indices != nullptr && values != nullptr) {
      const auto places = trace.bytes(*indices), bits = trace.bytes(*values);
      tensor.offsets.resize(places.size() / 4);
      std::memcpy(tensor.offsets.data(), places.data(), places.size());
      tensor.values.assign(bits.begin(), bits.end());
    }
    tensor.old_values.resize(tensor.values.size());
    host_kernels().gather(tensor.weights.data(), 2, tensor.offsets.data(), tensor.offsets.size(),
                          tensor.old_values.data());
  }
}

Digest digest_of(const Step& step, const Tensor& tensor) {
  return host_kernels().digest_change(digest_tensor_key(step.layout[tensor.index].name), 2, 0,
                                      tensor.offsets.data(), tensor.offsets.size(),
                                      tensor.old_values.data(), tensor.values.data());
}

Bytes encode(const Step& step) {
  const auto counts = std::make_unique<CompactCounts>();
  for (const Tensor& tensor : step.tensors) {
    count_compact_units(kFields, tensor.weights.data(), tensor.weights.size() / 2, *counts);
    count_compact_changes(kFields, tensor.old_values.data(), tensor.values.data(),
                          tensor.offsets.size(), *counts);
  }
  const std::vector<CompactTable> tables{make_compact_table(kFields, *counts)};
  std::vector<CompactStreams> streams(step.tensors.size());
  std::vector<Bytes> indices(step.tensors.size());
  std::vector<CompactBlock> blocks;
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    const Tensor& tensor = step.tensors[i];
    if (tensor.offsets.empty()) continue;
    const DeltaView delta{tensor.index, 2, 0, tensor.offsets, tensor.values.data()};
    must(encode_compact(host_kernels(), tables[0], delta, tensor.weights.data(),
                        tensor.weights.size() / 2, streams[i]));
    append_compact_index({digest_of(step, tensor), streams[i].tiles}, indices[i]);
    blocks.push_back(
        {tensor.index, nullptr, 0, tensor.offsets.size(), indices[i], streams[i].bytes});
  }
  FrameContext context;
  context.layout = step.layout.signature();
  context.encoding = Encoding::kCompact;
  Bytes frame;
  must(encode_compact_frame(context, step.layout, DType::kBF16, tables, blocks, frame));
  return frame;
}

// Decodes stretch by stretch, like a receiver that holds the old values.
void decode(const Step& step, const Bytes& bytes) {
  const Frame frame = must(Frame::decode(bytes, step.layout, bytes.size()));
  CompactChanges changes;
  for (const CompactBlock& block : frame.compact_blocks()) {
    const CompactIndex index = must(Frame::read_index(step.layout, block));
    const Tensor& tensor = step.tensors[block.tensor];
    const std::uint64_t units = block.units(step.layout);
    const DigestTensorKey key = digest_tensor_key(step.layout[block.tensor].name);
    std::span<const CompactTile> tiles = index.tiles;
    std::span<const std::byte> coded = block.tiles;
    Digest change;
    for (std::uint64_t at = 0; at < units; at += kStretch) {
      const auto some = tiles.first(std::min<std::size_t>(tiles.size(), 64));
      std::uint64_t size = 0;
      for (const CompactTile& tile : some) size += tile.bytes;
      must(decode_compact(host_kernels(), frame.compact_tables()[block.table],
                          tensor.weights.data() + 2 * at, std::min(kStretch, units - at), some,
                          coded.first(size), changes));
      change +=
          host_kernels().digest_change(key, 2, at, changes.offsets.data(), changes.offsets.size(),
                                       changes.old_values.data(), changes.values.data());
      tiles = tiles.subspan(some.size());
      coded = coded.subspan(size);
    }
    if (change != index.change) must(error(StatusCode::kMismatch, "the digest of a change"));
  }
}

struct Sums {
  double bytes = 0, changes = 0, units = 0, encode_s = 0, decode_s = 0, read_s = 0;

  void print(const std::string& name) const {
    std::printf("| %s | %.0f | %.2f | %.3f | %.2f | %.2f | %.2f | %.2f |\n", name.c_str(), changes,
                100 * changes / units, 8 * bytes / changes, units / encode_s / 1e9,
                units / decode_s / 1e9, encode_s / read_s, decode_s / read_s);
  }
};

Step load_base(const std::string& directory) {
  const SafetensorsFile base =
      must(SafetensorsFile::open(posix_file_system(), directory + "/base.safetensors"));
  std::vector<TensorSpec> specs;
  for (const SafetensorsEntry& entry : base.header().tensors) specs.push_back(entry.spec);
  Step step{must(WeightLayout::make(std::move(specs))), {}};
  for (std::uint32_t i = 0; i < step.layout.size(); ++i) {
    const auto bytes = base.bytes(*base.find(step.layout[i].name));
    step.tensors.push_back({i, {bytes.begin(), bytes.end()}, {}, {}, {}});
  }
  return step;
}
SafetensorsFile open_trace(const std::string& directory) {
  return must(SafetensorsFile::open(posix_file_system(), directory + "/trace.safetensors"));
}

// Makes the weights those after the step.
void take_step(Step& step) {
  for (Tensor& tensor : step.tensors) {
    host_kernels().scatter(tensor.weights.data(), 2, tensor.offsets.data(), tensor.offsets.size(),
                           tensor.values.data());
  }
}

int run(const std::string& directory, unsigned repeats) {
  const SafetensorsFile trace = open_trace(directory);
  Step step = load_base(directory);
  std::printf(
      "| step | changes | %% | bits per change | encode, G weights/s | decode | encode, in reads | "
      "decode |\n|---|---|---|---|---|---|---|---|\n");
  Sums all;
  for (unsigned number = 1;; ++number) {
    load_step(trace, number, step);
    Sums sums;
    for (const Tensor& tensor : step.tensors) {
      sums.changes += static_cast<double>(tensor.offsets.size());
      sums.units += static_cast<double>(tensor.weights.size()) / 2;
    }
    if (sums.changes == 0) break;
    Bytes frame;
    sums.encode_s = seconds(repeats, [&] { frame = encode(step); });
    sums.decode_s = seconds(repeats, [&] { decode(step, frame); });
    volatile std::uint64_t sink = 0;
    sums.read_s = seconds(repeats, [&] {
      for (const Tensor& tensor : step.tensors) {
        std::uint64_t sum = 0;
        for (std::size_t at = 0; at + 8 <= tensor.weights.size(); at += 8) {
          std::uint64_t word;
          std::memcpy(&word, tensor.weights.data() + at, 8);
          sum += word;
        }
        sink = sink + sum;
      }
    });
    sums.bytes = static_cast<double>(frame.size());
    sums.print(std::to_string(number));
    for (double Sums::* const each : {&Sums::bytes, &Sums::changes, &Sums::units, &Sums::encode_s,
                                      &Sums::decode_s, &Sums::read_s}) {
      all.*each += sums.*each;
    }
    take_step(step);
  }
  all.print("all");
  return 0;
}

// --- the bytes of tables, and the bytes that other tables would save ---

using Counts = std::vector<CompactCounts>;  // by tensor

// Counts every unit; count_compact_units() would count only a sample of a large tensor.
Counts count_all(const Step& step) {
  Counts counts(step.tensors.size());
  for (const Tensor& tensor : step.tensors) {
    CompactCounts& tensor_counts = counts[tensor.index];
    const std::uint64_t units = tensor.weights.size() / 2;
    for (std::uint64_t at = 0; at < units; at += kCompactTileUnits) {
      count_compact_units(kFields, tensor.weights.data() + 2 * at,
                          std::min<std::uint64_t>(kCompactTileUnits, units - at), tensor_counts);
    }
    count_compact_changes(kFields, tensor.old_values.data(), tensor.values.data(),
                          tensor.offsets.size(), tensor_counts);
  }
  return counts;
}

// A table from the counts `before`, plus one change of each kind that occurs only in `now`.
CompactTable table_of(CompactCounts before, const CompactCounts& now) {
  for (std::size_t c = 0; c < kCompactClasses; ++c) {
    for (std::size_t s = 0; s < kCompactStepSymbols; ++s) {
      if (now.steps[c][s] == 0 || before.steps[c][s] != 0) continue;
      before.steps[c][s] = 1;
      ++before.changes[c];
    }
  }
  return make_compact_table(kFields, before);
}

double stream_bytes(const Tensor& tensor, const CompactTable& table) {
  if (tensor.offsets.empty()) return 0;
  CompactStreams streams;
  const DeltaView delta{tensor.index, 2, 0, tensor.offsets, tensor.values.data()};
  must(encode_compact(host_kernels(), table, delta, tensor.weights.data(),
                      tensor.weights.size() / 2, streams));
  return static_cast<double>(streams.bytes.size());
}

// The frame that a publisher makes of this step.
Bytes published_frame(Step step) {
  std::vector<ChangedBlock> blocks;
  take_step(step);
  for (const Tensor& tensor : step.tensors) {
    if (tensor.offsets.empty()) continue;
    blocks.push_back({tensor.index,
                      nullptr,
                      tensor.weights.data(),
                      BlockPlace::all(tensor.weights.size() / 2),
                      {{0, tensor.offsets, tensor.values, tensor.old_values}}});
  }
  FrameContext context;
  context.layout = step.layout.signature();
  context.encoding = Encoding::kCompact;
  Bytes frame;
  must(encode_changed_blocks(context, step.layout, DType::kBF16, blocks, 1, frame));
  return frame;
}

// In bytes. A saving is the decrease of the streams, negative if they grow.
struct TableSums {
  double frame = 0, table_count = 0, tables = 0, alone = 0, before = 0, before_table = 0, best = 0;

  void print(const std::string& name) const {
    std::printf("| %s | %.0f | %.0f | %.0f | %.2f |", name.c_str(), frame, table_count, tables,
                100 * tables / frame);
    for (const double each : {alone, before, before_table, best}) {
      std::printf(" %.2f |", 100 * each / frame);
    }
    std::printf("\n");
  }
};

TableSums sum_tables(const Step& step, const Counts& counts, const Counts& before) {
  TableSums sums;
  const Bytes bytes = published_frame(step);
  sums.frame = static_cast<double>(bytes.size());
  const Frame frame = must(Frame::decode(bytes, step.layout, bytes.size()));
  Bytes tables;
  for (const CompactTable& table : frame.compact_tables()) append_compact_table(table, tables);
  sums.table_count = static_cast<double>(frame.compact_tables().size());
  sums.tables = static_cast<double>(tables.size());
  CompactCounts all_before, all_now;
  for (const CompactCounts& each : before) all_before.add(each);
  for (const CompactCounts& each : counts) all_now.add(each);
  const CompactTable shared_before = table_of(all_before, all_now);
  for (const CompactBlock& block : frame.compact_blocks()) {
    const Tensor& tensor = step.tensors[block.tensor];
    const CompactCounts& now = counts[block.tensor];
    const auto stream = static_cast<double>(block.tiles.size());
    const double alone = stream - stream_bytes(tensor, make_compact_table(kFields, now));
    sums.alone += alone;
    sums.best += std::max(alone, 0.0);
    if (before.empty()) continue;
    const double shared = stream - stream_bytes(tensor, shared_before);
    const double before_table = stream - stream_bytes(tensor, table_of(before[block.tensor], now));
    sums.before += shared;
    sums.before_table += before_table;
    sums.best += std::max({alone, shared, before_table, 0.0}) - std::max(alone, 0.0);
  }
  return sums;
}

int run_tables(const std::string& directory) {
  const SafetensorsFile trace = open_trace(directory);
  Step step = load_base(directory);
  std::printf(
      "| step | frame, bytes | tables | their bytes | %% | own tables save, %% | the step before's "
      "| "
      "of each tensor | the best |\n|---|---|---|---|---|---|---|---|---|\n");
  TableSums all;
  Counts before;
  for (unsigned number = 1;; ++number) {
    load_step(trace, number, step);
    if (std::ranges::all_of(step.tensors,
                            [](const Tensor& each) { return each.offsets.empty(); })) {
      break;
    }
    Counts counts = count_all(step);
    const TableSums sums = sum_tables(step, counts, before);
    sums.print(std::to_string(number));
    for (double TableSums::* const each :
         {&TableSums::frame, &TableSums::table_count, &TableSums::tables, &TableSums::alone,
          &TableSums::before, &TableSums::before_table, &TableSums::best}) {
      all.*each += sums.*each;
    }
    take_step(step);
    before = std::move(counts);
  }
  all.print("all");
  return 0;
}

}  // namespace
}  // namespace driftless

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: compact_bench TRACE [repeats | tables]\n");
    return 2;
  }
  if (argc > 2 && std::string_view(argv[2]) == "tables") return driftless::run_tables(argv[1]);
  return driftless::run(argv[1], argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 3);
}
