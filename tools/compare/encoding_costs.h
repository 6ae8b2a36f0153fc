// SPDX-License-Identifier: Apache-2.0
// EncodingCosts: measures how many bytes each encoding needs for the changes of a version, and how
// long encoding takes here. The files are those of `driftless diff`, made by the same writers;
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
  DirectoryLayout layout = DirectoryLayout::kFlush;  // the layout that `diff` uses for it
  std::uint64_t bytes = 0;                           // of the payload files
  double encode_ms = 0;                              // on this host, while the comparison runs
  std::string why_not{};                             // empty: it was measured

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
// The measured encoding with the smallest sum of encode time and link time; null: none was
// measured.
[[nodiscard]] const EncodingCost* fastest_on(std::span<const EncodingCost> costs, const Link& link);

struct CostOptions {
  VersionId id{{}, 1};
  std::uint64_t base_version = 0;
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  unsigned threads = 1;
  // If not empty, old values and new bytes are not known, for this reason. Then `compact`, `xor`
  // and `overwrite` are not measured.
  std::string no_old_values;
};

class EncodingCosts {
 public:
  // The layout outlives it.
  EncodingCosts(const WeightLayout& layout, CostOptions options);

  // Takes changes as PayloadFiles::add() does.
  [[nodiscard]] Status add(const DiffPiece& piece);
  // Names the tensors that may follow; call it before add_whole().
  [[nodiscard]] Status begin_whole(std::span<const std::uint32_t> candidates);
  // Takes both sides of changed tensors, each tensor once: for `xor` and `overwrite`.
  [[nodiscard]] Status add_whole(std::span<const HfShardWriter::Tensor> tensors);
  // In the order of kFileEncodings.
  [[nodiscard]] Result<std::vector<EncodingCost>> finish();

 private:
  struct Row {
    EncodingCost cost;
    std::unique_ptr<PayloadFiles> files;   // null: `shard` measures it, or its row has ended
    std::unique_ptr<HfShardWriter> shard;  // null before begin_whole()
  };
  // Measures `work`. If the encoding does not support it, its row ends and the comparison
  // continues.
  template <typename Work>
  [[nodiscard]] static Status timed(Row& row, const Work& work);
  static void give_up(Row& row, std::string why);

  const WeightLayout* layout_;
  CostOptions options_;
  std::vector<Row> rows_;
  std::uint32_t tensor_ = ~std::uint32_t{0};  // of the last piece
  std::uint64_t tensor_bytes_ = 0;            // held by `compact` for that tensor
};

using WholeTensors = std::span<const HfShardWriter::Tensor>;
// Calls use(batch) for adjacent tensors that together have about 32 MiB, until a call fails.
[[nodiscard]] Status each_batch(WholeTensors tensors,
                                const std::function<Status(WholeTensors batch)>& use);

// The cost of all tensors, whole, as one shard; `tensors` contains the full layout. `read` receives
// each batch after it was read.
[[nodiscard]] Result<EncodingCost> cost_of_full(
    const WeightLayout& layout, WholeTensors tensors, unsigned threads,
    const std::function<void(WholeTensors batch)>& read);

}  // namespace driftless
