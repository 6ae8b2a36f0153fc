// SPDX-License-Identifier: Apache-2.0
// Writes a Hugging Face checkpoint directory, tensor after tensor, without holding one in memory.
#pragma once

#include "formats/safetensors.h"

namespace driftless {

// "model-00001-of-00003.safetensors".
[[nodiscard]] std::string shard_file_name(std::size_t number, std::size_t files);

// Which file of a checkpoint each tensor goes into: one model.safetensors, or if that would be
// larger than `shard_bytes` model-00001-of-0000N.safetensors and an index. A tensor is never cut.
struct ShardPlan {
  std::vector<TensorSpec> tensors;  // in the order of writing
  std::vector<std::size_t> first;   // the first tensor of each file, and tensors.size()

  [[nodiscard]] static ShardPlan make(std::vector<TensorSpec> tensors, std::uint64_t shard_bytes);
  [[nodiscard]] std::size_t files() const { return first.size() - 1; }
  [[nodiscard]] std::string file_name(std::size_t file) const;
  [[nodiscard]] std::uint64_t total_bytes() const;
  // model.safetensors.index.json.
  [[nodiscard]] std::string index_json() const;
};

// Takes the bytes of all tensors of `plan` in order, in pieces of any size that do not span two
// tensors. One thread at a time. The directory exists and is empty; it is complete once finish()
// returned ok. `plan` outlives the writer.
class CheckpointWriter {
 public:
  CheckpointWriter(FileSystem& fs, std::string directory, const ShardPlan& plan)
      : fs_(&fs), directory_(std::move(directory)), plan_(&plan) {}

  [[nodiscard]] Status append(std::span<const std::byte> bytes);
  // Writes the index if there is one and syncs all.
  [[nodiscard]] Status finish();

 private:
  [[nodiscard]] Status begin_tensor();
  [[nodiscard]] Status end_tensor();

  FileSystem* fs_;
  std::string directory_;
  const ShardPlan* plan_;
  std::optional<SafetensorsWriter> writer_;
  std::size_t file_ = 0;            // the one being written or about to be
  std::size_t tensor_ = 0;          // likewise
  std::uint64_t tensor_bytes_ = 0;  // of it that came so far
  bool in_tensor_ = false;
};

// A checkpoint directory that is not there yet becomes a copy of the one at `base`, whole or not at
// all. kNotFound if `base` is empty.
[[nodiscard]] Status copy_base(const std::string& base, const std::string& path);

}  // namespace driftless
