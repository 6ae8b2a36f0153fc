// SPDX-License-Identifier: Apache-2.0
// Writes a Hugging Face checkpoint directory, one tensor after the other, without holding a whole
// tensor in memory.
#pragma once

#include "formats/safetensors.h"

namespace driftless {

// For example "model-00001-of-00003.safetensors".
[[nodiscard]] std::string shard_file_name(std::size_t number, std::size_t files);

// Assigns the tensors of a checkpoint to files: one model.safetensors, or, if that would exceed
// `shard_bytes`, model-00001-of-0000N.safetensors and an index. A tensor is never split.
struct ShardPlan {
  std::vector<TensorSpec> tensors;  // in write order
  std::vector<std::size_t> first;   // the index of each file's first tensor, and tensors.size()

  [[nodiscard]] static ShardPlan make(std::vector<TensorSpec> tensors, std::uint64_t shard_bytes);
  [[nodiscard]] std::size_t files() const { return first.size() - 1; }
  [[nodiscard]] std::string file_name(std::size_t file) const;
  [[nodiscard]] std::uint64_t total_bytes() const;
  // The content of model.safetensors.index.json.
  [[nodiscard]] std::string index_json() const;
};

// Takes the bytes of all tensors of `plan` in order, in pieces of any size, none of which spans two
// tensors. One thread at a time. The directory must exist and be empty; it is complete once
// finish() returned ok. `plan` outlives the writer.
class CheckpointWriter {
 public:
  CheckpointWriter(FileSystem& fs, std::string directory, const ShardPlan& plan)
      : fs_(&fs), directory_(std::move(directory)), plan_(&plan) {}

  [[nodiscard]] Status append(std::span<const std::byte> bytes);
  // Writes the index, if there is one, and syncs all files.
  [[nodiscard]] Status finish();

 private:
  [[nodiscard]] Status begin_tensor();
  [[nodiscard]] Status end_tensor();

  FileSystem* fs_;
  std::string directory_;
  const ShardPlan* plan_;
  std::optional<SafetensorsWriter> writer_;
  std::size_t file_ = 0;            // the current or next file
  std::size_t tensor_ = 0;          // the current or next tensor
  std::uint64_t tensor_bytes_ = 0;  // bytes of that tensor received so far
  bool in_tensor_ = false;
};

// Copies the checkpoint directory `base` to `path`, if `path` does not exist yet, whole or not at
// all. kNotFound if `base` is empty.
[[nodiscard]] Status copy_base(const std::string& base, const std::string& path);

}  // namespace driftless
