// SPDX-License-Identifier: Apache-2.0
// Writes one shard of an hf_delta version, compressed deltas of tensors or whole tensors, into one
// safetensors file as the tensors arrive.
#pragma once

#include "core/delta_view.h"
#include "formats/checksum.h"
#include "formats/encoding.h"
#include "formats/safetensors.h"
#include "formats/zstd_stream.h"

namespace driftless {

struct ShardOptions {
  Encoding encoding = Encoding::kXor;  // kXor, kOverwrite or kFull
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  unsigned threads = 1;
};

// Memory: some megabytes per thread, whatever the size of the tensors. One thread at a time. The
// layout outlives it.
class HfShardWriter {
 public:
  // The changed units of a tensor, and their old values.
  struct Changes {
    DeltaView delta;
    const std::byte* old_values = nullptr;  // in the order of delta.values
  };
  struct Tensor {
    std::uint32_t tensor = 0;                  // index in the layout
    std::span<const std::byte> before, after;  // `before` is ignored for kFull
    // All changes, ascending; if it is not empty, `before` is ignored.
    std::span<const Changes> changes = {};
  };
  // Only tensors out of `candidates` may be added: the size of the header is reserved for them.
  [[nodiscard]] static Result<std::unique_ptr<HfShardWriter>> create(
      std::unique_ptr<File> file, const WeightLayout& layout,
      std::span<const std::uint32_t> candidates, const ShardOptions& options);

  // Add each tensor once. Tensors are compressed in parallel and written in order.
  [[nodiscard]] Status add(std::span<const Tensor> tensors);
  // Writes the header and syncs. Returns the size of the file.
  [[nodiscard]] Result<std::uint64_t> finish();
  // By tensor index, the checksum of every tensor added: of its bytes after the change.
  [[nodiscard]] const std::map<std::uint32_t, std::string>& checksums() const { return checksums_; }

 private:
  // The compressed payload of one tensor, if it is small enough to be held in memory.
  struct Compressed {
    std::vector<std::byte> bytes;
    std::string checksum;
    bool too_large = false;
  };
  HfShardWriter(SafetensorsWriter writer, const WeightLayout& layout, const ShardOptions& options)
      : writer_(std::move(writer)), layout_(&layout), options_(options) {}
  Status compress(const Tensor& tensor, Compressed& compressed) const;
  Status append(const Tensor& tensor, const Compressed& compressed);
  Status encode(const Tensor& tensor, unsigned workers, const ByteSink& sink) const;

  SafetensorsWriter writer_;
  const WeightLayout* layout_;
  ShardOptions options_;
  std::map<std::uint32_t, std::string> checksums_;
};

}  // namespace driftless
