// SPDX-License-Identifier: Apache-2.0
// EncodingCosts: how many bytes each encoding takes for the changes of a version, and how long
// encoding takes here. The files are those that `driftless diff` writes, made by the same writers;
// their bytes are counted and dropped. Nothing is written.
//
// One thread at a time. Memory: a buffer for each encoding, whatever the size of the weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "plugin/checkpoint/payload_files.h"
#include "plugin/interchange/hf_shard_writer.h"

namespace driftless {

struct EncodingCost {
  Encoding encoding = Encoding::kDeltas;
  DirectoryLayout layout = DirectoryLayout::kFlush;  // of `diff` for it
  std::uint64_t bytes = 0;                           // of the payload files
  double encode_ms = 0;                              // here, beside the comparison
  std::string why_not{};                             // not empty: it was not measured

  [[nodiscard]] bool measured() const { return why_not.empty(); }
};
struct Link {
  std::string_view name;
  double bits_per_s = 0;
};
inline constexpr Link kLinks[] = {
    {"100 Mbit/s", 1e8}, {"1 Gbit/s", 1e9}, {"10 Gbit/s", 1e10}, {"100 Gbit/s", 1e11}};
// Computed, not measured: the bytes at the rate of the link, without protocol or latency.
[[nodiscard]] double link_seconds(std::uint64_t bytes, const Link& link);
// The measured encoding whose encode time and link time add up to the least; null: none is.
[[nodiscard]] const EncodingCost* fastest_on(std::span<const EncodingCost> costs, const Link& link);

struct CostOptions {
  VersionId id{{}, 1};
  std::uint64_t base_version = 0;
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  unsigned threads = 1;
  // Not empty: old values and new bytes are not known, for this reason. Then `compact`, `xor` and
  // `overwrite` are not measured.
  std::string no_old_values;
};

class EncodingCosts {
 public:
  // The layout outlives it.
  EncodingCosts(const WeightLayout& layout, CostOptions options);

  // Changes, as PayloadFiles::add() takes them.
  [[nodiscard]] Status add(const DiffPiece& piece);
  // Before add_whole(): the tensors that may come.
  [[nodiscard]] Status begin_whole(std::span<const std::uint32_t> candidates);
  // Changed tensors, both sides of them, each once: for `xor` and `overwrite`.
  [[nodiscard]] Status add_whole(std::span<const HfShardWriter::Tensor> tensors);
  // In the order of kFileEncodings.
  [[nodiscard]] Result<std::vector<EncodingCost>> finish();

 private:
  struct Row {
    EncodingCost cost;
    std::unique_ptr<PayloadFiles> files;   // null: measured by `shard`, or not any more
    std::unique_ptr<HfShardWriter> shard;  // null before begin_whole()
  };
  // Measures `work`. What the encoding does not support ends its row, not the comparison.
  template <typename Work>
  [[nodiscard]] static Status timed(Row& row, const Work& work);
  static void give_up(Row& row, std::string why);

  const WeightLayout* layout_;
  CostOptions options_;
  std::vector<Row> rows_;
  std::uint32_t tensor_ = ~std::uint32_t{0};  // of the last piece
  std::uint64_t tensor_bytes_ = 0;            // that `compact` holds of it
};

using WholeTensors = std::span<const HfShardWriter::Tensor>;
// Calls use(batch) for neighbours that together have about 32 MiB, until one fails.
[[nodiscard]] Status each_batch(WholeTensors tensors,
                                const std::function<Status(WholeTensors batch)>& use);

// Every tensor whole, as one shard; `tensors` has all of the layout. `read` sees each batch once it
// was read.
[[nodiscard]] Result<EncodingCost> cost_of_full(
    const WeightLayout& layout, WholeTensors tensors, unsigned threads,
    const std::function<void(WholeTensors batch)>& read);

}  // namespace driftless
