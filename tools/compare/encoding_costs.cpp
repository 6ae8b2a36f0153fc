// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/encoding_costs.h"

#include <algorithm>
#include <numeric>

#include "core/stopwatch.h"
#include "tools/bench/bench.h"

namespace driftless {
namespace {

// `compact` holds all changes of a tensor at once. If they take more than this, it is not measured.
constexpr std::uint64_t kMostHeldBytes = std::uint64_t{1} << 30;

// Discards what is written. The writers count its bytes.
class DroppedFile final : public File {
 public:
  Status pwrite(std::uint64_t, std::span<const std::byte>) override { return {}; }
  Status pread(std::uint64_t, std::span<std::byte>) override {
    return error(StatusCode::kUnsupported, path_, ": its bytes were dropped");
  }
  Status sync() override { return {}; }
  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  std::string path_ = "a payload file that is only counted";
};

}  // namespace

double link_seconds(std::uint64_t bytes, const Link& link) {
  return 8.0 * static_cast<double>(bytes) / link.bits_per_s;
}

const EncodingCost* fastest_on(std::span<const EncodingCost> costs, const Link& link) {
  const EncodingCost* best = nullptr;
  const auto seconds = [&link](const EncodingCost& cost) {
    return cost.encode_ms / 1000 + link_seconds(cost.bytes, link);
  };
  for (const EncodingCost& cost : costs) {
    if (cost.measured() && (best == nullptr || seconds(cost) < seconds(*best))) best = &cost;
  }
  return best;
}

EncodingCosts::EncodingCosts(const WeightLayout& layout, CostOptions options)
    : layout_(&layout), options_(std::move(options)) {
  const PayloadFileOptions files{{options_.id, options_.base_version, layout.signature()},
                                 options_.buffer_bytes,
                                 options_.threads,
                                 [](const std::string&) -> Result<std::unique_ptr<File>> {
                                   return std::unique_ptr<File>(std::make_unique<DroppedFile>());
                                 }};
  for (const auto& [directory_layout, encoding] : kFileEncodings) {
    Row& row = rows_.emplace_back();
    row.cost.encoding = encoding;
    row.cost.layout = directory_layout;
    if (!info(encoding).positional && !options_.no_old_values.empty()) {
      give_up(row, options_.no_old_values);
      continue;
    }
    PayloadFileOptions adjusted = files;
    adjusted.frame.encoding = encoding;
    if (directory_layout == DirectoryLayout::kFlush) row.files = make_flush_files(layout, adjusted);
    if (directory_layout == DirectoryLayout::kFrames) {
      row.files = make_frame_files(layout, adjusted);
    }
  }
}

void EncodingCosts::give_up(Row& row, std::string why) {
  row.cost.why_not = std::move(why);
  row.files.reset();
  row.shard.reset();
}

template <typename Work>
Status EncodingCosts::timed(Row& row, const Work& work) {
  Stopwatch watch;
  const Status status = work();
  row.cost.encode_ms += watch.lap_ms();
  if (status.code() != StatusCode::kUnsupported) return status;
  give_up(row, std::string(status.message()));
  return {};
}

Status EncodingCosts::add(const DiffPiece& piece) {
  if (piece.delta.tensor != tensor_) tensor_bytes_ = 0;
  tensor_ = piece.delta.tensor;
  tensor_bytes_ += piece.delta.count() * (4 + 2 * std::uint64_t{piece.delta.unit_bytes});
  for (Row& row : rows_) {
    if (row.files == nullptr) continue;
    if (row.cost.encoding == Encoding::kCompact && tensor_bytes_ > kMostHeldBytes) {
      give_up(row, concat("more than ", kMostHeldBytes >> 30, " GiB of changes in tensor '",
                          (*layout_)[tensor_].name, "'"));
      continue;
    }
    DRIFTLESS_RETURN_IF_ERROR(timed(row, [&] { return row.files->add(piece); }));
  }
  return {};
}

Status EncodingCosts::begin_whole(std::span<const std::uint32_t> candidates) {
  for (Row& row : rows_) {
    if (row.cost.layout != DirectoryLayout::kHfDelta || !row.cost.measured()) continue;
    if (candidates.empty()) continue;  // no shard
    const ShardOptions options{row.cost.encoding, ChecksumKind::kXxh3_128, options_.threads};
    DRIFTLESS_ASSIGN_OR_RETURN(row.shard, HfShardWriter::create(std::make_unique<DroppedFile>(),
                                                                *layout_, candidates, options));
  }
  return {};
}

Status EncodingCosts::add_whole(std::span<const HfShardWriter::Tensor> tensors) {
  for (Row& row : rows_) {
    if (row.shard == nullptr) continue;
    DRIFTLESS_RETURN_IF_ERROR(timed(row, [&] { return row.shard->add(tensors); }));
  }
  return {};
}

Result<std::vector<EncodingCost>> EncodingCosts::finish() {
  std::vector<EncodingCost> costs;
  for (Row& row : rows_) {
    DRIFTLESS_RETURN_IF_ERROR(timed(row, [&]() -> Status {
      if (row.files != nullptr) {
        DRIFTLESS_ASSIGN_OR_RETURN(row.cost.bytes, row.files->finish());
      } else if (row.shard != nullptr) {
        DRIFTLESS_ASSIGN_OR_RETURN(row.cost.bytes, row.shard->finish());
      }
      return {};
    }));
    costs.push_back(row.cost);
  }
  return costs;
}

Status each_batch(WholeTensors tensors, const std::function<Status(WholeTensors batch)>& use) {
  constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;
  for (std::size_t at = 0; at < tensors.size();) {
    const std::size_t begin = at;
    for (std::uint64_t bytes = 0; at < tensors.size() && bytes < kBatchBytes; ++at) {
      bytes += tensors[at].after.size();
    }
    DRIFTLESS_RETURN_IF_ERROR(use(tensors.subspan(begin, at - begin)));
  }
  return {};
}

Result<EncodingCost> cost_of_full(const WeightLayout& layout, WholeTensors tensors,
                                  unsigned threads,
                                  const std::function<void(WholeTensors batch)>& read) {
  std::vector<std::uint32_t> all(layout.size());
  std::iota(all.begin(), all.end(), 0U);
  EncodingCost cost{Encoding::kFull, DirectoryLayout::kHfDelta};
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<HfShardWriter> shard,
      HfShardWriter::create(std::make_unique<DroppedFile>(), layout, all,
                            {Encoding::kFull, ChecksumKind::kXxh3_128, threads}));
  DRIFTLESS_RETURN_IF_ERROR(each_batch(tensors, [&](WholeTensors batch) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(shard->add(batch));
    read(batch);
    return {};
  }));
  DRIFTLESS_ASSIGN_OR_RETURN(cost.bytes, shard->finish());
  cost.encode_ms = watch.lap_ms();
  return cost;
}

}  // namespace driftless
