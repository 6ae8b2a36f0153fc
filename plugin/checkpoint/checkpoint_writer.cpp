// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/new_directory.h"

namespace driftless {
namespace {

const std::map<std::string, std::string>& file_metadata() {
  static const std::map<std::string, std::string> metadata{{"format", "pt"}};
  return metadata;
}

}  // namespace

std::string shard_file_name(std::size_t number, std::size_t files) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number, files);
  return name.data();
}

ShardPlan ShardPlan::make(std::vector<TensorSpec> tensors, std::uint64_t shard_bytes) {
  ShardPlan plan;
  plan.first.push_back(0);
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = tensors[i].size_bytes;
    if (i > plan.first.back() && (used > shard_bytes || size > shard_bytes - used)) {
      plan.first.push_back(i);
      used = 0;
    }
    used += size;
  }
  plan.first.push_back(tensors.size());
  plan.tensors = std::move(tensors);
  return plan;
}

std::string ShardPlan::file_name(std::size_t file) const {
  if (files() == 1) return "model.safetensors";
  return shard_file_name(file + 1, files());
}

std::uint64_t ShardPlan::total_bytes() const {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.size_bytes;
  return total;
}

std::string ShardPlan::index_json() const {
  nlohmann::json index = {{"metadata", {{"total_size", total_bytes()}}},
                          {"weight_map", nlohmann::json::object()}};
  for (std::size_t file = 0; file < files(); ++file) {
    for (std::size_t tensor = first[file]; tensor < first[file + 1]; ++tensor) {
      index["weight_map"][tensors[tensor].name] = file_name(file);
    }
  }
  return index.dump(2) + "\n";
}

Status CheckpointWriter::append(std::span<const std::byte> bytes) {
  if (tensor_ == plan_->tensors.size()) {
    return error(StatusCode::kInternal, directory_, ": bytes after the last tensor");
  }
  if (!in_tensor_) DRIFTLESS_RETURN_IF_ERROR(begin_tensor());
  DRIFTLESS_RETURN_IF_ERROR(writer_->append(bytes));
  tensor_bytes_ += bytes.size();
  return tensor_bytes_ < plan_->tensors[tensor_].size_bytes ? Status() : end_tensor();
}

Status CheckpointWriter::begin_tensor() {
  if (!writer_) {
    std::vector<std::string> names;
    std::size_t dimensions = 0;
    // The largest number in the header. A tensor without elements has no bytes, but may have large
    // extents.
    std::uint64_t largest = plan_->total_bytes();
    for (std::size_t i = plan_->first[file_]; i < plan_->first[file_ + 1]; ++i) {
      const TensorSpec& tensor = plan_->tensors[i];
      names.push_back(tensor.name);
      dimensions = std::max(dimensions, tensor.shape.size());
      for (const std::uint64_t extent : tensor.shape) largest = std::max(largest, extent);
    }
    const std::uint64_t header_bytes =
        SafetensorsWriter::header_bytes_for(names, dimensions, file_metadata(), largest);
    DRIFTLESS_ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::create(*fs_, join_path(directory_, plan_->file_name(file_)),
                                  header_bytes));
    writer_.emplace(std::move(writer));
    for (const auto& [key, value] : file_metadata()) {
      DRIFTLESS_RETURN_IF_ERROR(writer_->add_metadata(key, value));
    }
  }
  in_tensor_ = true;
  tensor_bytes_ = 0;
  return writer_->begin_tensor(plan_->tensors[tensor_].name, plan_->tensors[tensor_].dtype);
}

Status CheckpointWriter::end_tensor() {
  DRIFTLESS_RETURN_IF_ERROR(writer_->end_tensor(plan_->tensors[tensor_].shape));
  in_tensor_ = false;
  ++tensor_;
  if (tensor_ != plan_->first[file_ + 1]) return {};
  DRIFTLESS_RETURN_IF_ERROR(writer_->finish().status());
  writer_.reset();
  ++file_;
  return {};
}

Status CheckpointWriter::finish() {
  if (tensor_ != plan_->tensors.size()) {
    return error(StatusCode::kInternal, directory_, ": ", tensor_, " tensors were written, ",
                 plan_->tensors.size(), " are planned");
  }
  if (plan_->files() > 1) {
    DRIFTLESS_RETURN_IF_ERROR(write_text(
        *fs_, join_path(directory_, "model.safetensors.index.json"), plan_->index_json()));
  }
  return fs_->sync_directory(directory_);
}

// Copies into a hidden sibling and renames it, so that an incomplete copy is never taken for a
// checkpoint.
Status copy_base(const std::string& base, const std::string& path) {
  FileSystem& fs = posix_file_system();
  if (exists(fs, path)) return {};
  if (base.empty()) {
    return error(StatusCode::kNotFound, "receiver.checkpoint_dir: ", path,
                 " does not exist; give --base CKPT to copy a base there");
  }
  const std::filesystem::path target = std::filesystem::path(path).lexically_normal();
  const std::string hidden =
      (target.parent_path() / concat(".", target.filename().string())).string();
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  // Creates only the last directory of the path, as the copy itself does: the parent must exist.
  DRIFTLESS_RETURN_IF_ERROR(make_last_directory(fs, hidden).status());
  std::error_code failed;
  std::filesystem::copy(base, hidden, std::filesystem::copy_options::recursive, failed);
  if (failed) return errno_status(failed.value(), concat("copying ", base, " to ", path));
  return fs.rename_new(hidden, target.string());
}

}  // namespace driftless
