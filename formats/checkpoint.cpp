// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

namespace driftless {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// Whether `path` is a directory; follows a symbolic link that the caller names.
Result<bool> is_directory(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
  if (info.kind != FileKind::kSymlink) return info.kind == FileKind::kDirectory;
  return fs.info(join_path(path, ".")).ok();
}

// "'a', 'b', 'c' and 5 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    text += concat(i > 0 ? ", " : "", shown(names[i]));
  }
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
  return text;
}

// The one *.safetensors file of a directory that has no index.
Result<std::string> only_file(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::string> names, fs.list(directory));
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with('.') || !name.ends_with(kSuffix);
  });
  if (names.empty()) {
    return error(StatusCode::kNotFound, directory, ": no ", kCheckpointIndexName,
                 " and no *.safetensors file in it; give the directory of a checkpoint");
  }
  if (names.size() > 1) {
    return error(StatusCode::kIncomplete, directory, ": ", names.size(), " safetensors files (",
                 listed(names), "), but no ", kCheckpointIndexName,
                 " that says which belong to the checkpoint; add it, or give one of the files");
  }
  return names.front();
}

// The tensors of a file must be exactly those that the index assigns to it.
Status check_shard(const SafetensorsFile& shard, const std::string& file, const TensorFiles& index,
                   std::uint64_t expected_tensors) {
  for (const SafetensorsEntry& entry : shard.header().tensors) {
    const auto at = index.find(entry.spec.name);
    if (at == index.end()) {
      return error(StatusCode::kCorrupt, shard.file().path(), ": tensor ", shown(entry.spec.name),
                   " is not in the weight_map of ", kCheckpointIndexName);
    }
    if (at->second != file) {
      return error(StatusCode::kCorrupt, shard.file().path(), ": tensor ", shown(entry.spec.name),
                   " is in this file, but ", kCheckpointIndexName, " assigns it to ",
                   shown(at->second));
    }
  }
  if (shard.header().tensors.size() == expected_tensors) return {};
  for (const auto& [tensor, home] : index) {
    if (home == file && shard.find(tensor) == nullptr) {
      return error(StatusCode::kCorrupt, shard.file().path(), ": tensor ", shown(tensor),
                   " is not in this file, but ", kCheckpointIndexName, " assigns it to the file");
    }
  }
  return error(StatusCode::kInternal, shard.file().path(), ": counted ", expected_tensors,
               " tensors in the index");
}

// Whether `directory` is part of a snapshot in a model hub's cache, and `file` a blob of the same
// repository. Both are real paths.
bool is_blob_of_snapshot(const std::filesystem::path& directory,
                         const std::filesystem::path& file) {
  for (std::filesystem::path at = directory; at.has_relative_path(); at = at.parent_path()) {
    const std::filesystem::path above = at.parent_path(), repository = above.parent_path();
    if (above.filename() == "snapshots" && repository.filename().string().starts_with("models--")) {
      return file.parent_path() == repository / "blobs";
    }
  }
  return false;
}

// The target of a symbolic link in a checkpoint's directory, if it may be followed.
Result<std::string> follow_link(FileSystem& fs, const std::string& directory,
                                const std::string& name) {
  const Status inside = check_inside(fs, directory, name);
  if (inside.code() == StatusCode::kNotFound) return inside;
  std::error_code problem;
  const auto root = std::filesystem::canonical(directory, problem);
  const auto real = std::filesystem::canonical(join_path(directory, name), problem);
  if (problem) return errno_status(problem.value(), join_path(directory, name));
  if (!inside.ok() && !is_blob_of_snapshot(root, real)) return inside;
  return real.string();
}

// Whether a file of this name may be configuration or tokenizer.
bool is_companion(std::string_view name) {
  constexpr std::string_view kOthers[] = {".safetensors", ".bin",        ".pt",   ".pth", ".ckpt",
                                          ".h5",          ".msgpack",    ".gguf", ".npz", ".onnx",
                                          ".tar",         ".index.json", ".tmp"};
  if (name.starts_with('.') || name == "manifest.json" || name == "DONE") return false;
  return std::ranges::none_of(kOthers, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

Result<TensorFiles> read_weight_map(const Json& index, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* object, json_object(index, "weight_map", what));
  if (index.contains("metadata")) {
    DRIFTLESS_RETURN_IF_ERROR(json_object(index, "metadata", what).status());
  }
  TensorFiles weight_map;
  for (const auto& [tensor, file] : object->get_ref<const Json::object_t&>()) {
    DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(tensor).with_context(what));
    if (!file.is_string()) {
      return error(StatusCode::kCorrupt, what, ": the file of tensor ", shown(tensor),
                   " must be a string, found ", file.type_name());
    }
    const auto& name = file.get_ref<const std::string&>();
    if (const Status status = check_file_name(name); !status.ok()) {
      return status.with_context(concat(what, ": the file of tensor ", shown(tensor)));
    }
    weight_map.emplace_hint(weight_map.end(), tensor, name);
  }
  return weight_map;
}

Result<TensorFiles> parse_checkpoint_index(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json index, parse_json(text, what));
  return read_weight_map(index, what);
}

Result<CheckpointFile> open_checkpoint_file(FileSystem& fs, const std::string& directory,
                                            const std::string& name) {
  std::string real = join_path(directory, name);
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(real));
  CheckpointFile file{{}, info.kind == FileKind::kSymlink};
  if (file.linked) {
    DRIFTLESS_ASSIGN_OR_RETURN(real, follow_link(fs, directory, name));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(file.content, fs.map(real));
  // If a link replaced the file after the check, map() followed that link to an unchecked target.
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo now, fs.info(real));
  const bool same = !file.linked || file.content.identity() == now.identity;
  if (now.kind == FileKind::kFile && same) return file;
  return error(StatusCode::kBusy, real, ": was replaced while it was opened; try again");
}

Result<Companions> open_companions(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  Companions found;
  std::vector<std::pair<std::uint64_t, std::string>> by_size;
  for (const std::string& name : names) {
    const std::string path = join_path(directory, name);
    if (!is_companion(name) || fs.info(join_path(path, ".")).ok()) continue;  // a directory
    Result<CheckpointFile> file = open_checkpoint_file(fs, directory, name);
    if (file.ok()) {
      by_size.emplace_back(file->content.bytes().size(), name);
      found.files[name] = std::move(file->content);
    } else {
      found.left_out.emplace_back(file.status().message());
    }
  }
  std::ranges::sort(by_size);
  std::uint64_t sum = 0;
  for (const auto& [bytes, name] : by_size) {
    if (bytes <= kMaxCompanionBytes - sum) {
      sum += bytes;
      continue;
    }
    found.left_out.push_back(concat(join_path(directory, name), ": ", bytes, " bytes, after ", sum,
                                    " in smaller files; a version carries files beside weights of ",
                                    kMaxCompanionBytes, " bytes in all at most"));
    found.files.erase(name);
  }
  return found;
}

Status Checkpoint::open_shard(FileSystem& fs, const std::string& name) {
  DRIFTLESS_ASSIGN_OR_RETURN(CheckpointFile file, open_checkpoint_file(fs, path_, name));
  linked_ = linked_ || file.linked;
  Result<SafetensorsFile> opened = SafetensorsFile::open(std::move(file.content));
  if (!opened.ok()) {
    return file.linked ? opened.status().with_context(join_path(path_, name)) : opened.status();
  }
  files_.push_back(std::move(*opened));
  names_.push_back(name);
  return {};
}

Status Checkpoint::open_shards(FileSystem& fs, const TensorFiles& index) {
  struct Expected {
    std::string first_tensor;
    std::uint64_t tensors = 0;
  };
  std::map<std::string, Expected> expected;
  for (const auto& [tensor, file] : index) {
    Expected& shard = expected.try_emplace(file, Expected{tensor, 0}).first->second;
    ++shard.tensors;
  }
  for (const auto& [name, shard] : expected) {
    const Status opened = open_shard(fs, name);
    if (opened.code() == StatusCode::kNotFound) {
      return error(StatusCode::kNotFound, join_path(path_, name), ": is missing; ",
                   kCheckpointIndexName, " has tensor ", shown(shard.first_tensor), " in it");
    }
    DRIFTLESS_RETURN_IF_ERROR(opened);
    DRIFTLESS_RETURN_IF_ERROR(check_shard(files_.back(), name, index, shard.tensors));
  }
  return {};
}

Status Checkpoint::open_files(FileSystem& fs) {
  DRIFTLESS_ASSIGN_OR_RETURN(directory_, is_directory(fs, path_));
  if (!directory_) {  // follows a link that the caller names
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(fs, path_));
    files_.push_back(std::move(opened));
    names_.push_back(path_.substr(path_.rfind('/') + 1));
    return {};
  }
  const std::string index_path = join_path(path_, kCheckpointIndexName);
  const Result<FileInfo> index = fs.info(index_path);
  if (index.status().code() == StatusCode::kNotFound) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, only_file(fs, path_));
    return open_shard(fs, name);
  }
  DRIFTLESS_RETURN_IF_ERROR(index.status());
  DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointFile file,
                             open_checkpoint_file(fs, path_, std::string(kCheckpointIndexName)));
  linked_ = file.linked;
  const std::span<const std::byte> bytes = file.content.bytes();
  if (bytes.size() > kMaxCheckpointIndexBytes) {
    return error(StatusCode::kCorrupt, index_path, ": ", bytes.size(), " bytes, at most ",
                 kMaxCheckpointIndexBytes, " are expected");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  index_hash_ = xxh3_128(bytes);
  DRIFTLESS_ASSIGN_OR_RETURN(const TensorFiles tensors, parse_checkpoint_index(text, index_path));
  return open_shards(fs, tensors);
}

Result<Checkpoint> Checkpoint::open(FileSystem& fs, const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  DRIFTLESS_RETURN_IF_ERROR(checkpoint.open_files(fs));
  std::vector<TensorSpec> specs;
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const SafetensorsEntry& entry : file.header().tensors) specs.push_back(entry.spec);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(checkpoint.layout_,
                             WeightLayout::make(std::move(specs)).with_context(path));
  checkpoint.locations_.resize(checkpoint.layout_.size());
  for (std::uint32_t number = 0; number < checkpoint.files_.size(); ++number) {
    for (const SafetensorsEntry& entry : checkpoint.files_[number].header().tensors) {
      const std::optional<std::uint32_t> tensor = checkpoint.layout_.find(entry.spec.name);
      checkpoint.locations_[*tensor] = {number, entry.file_offset};
    }
  }
  return checkpoint;
}

Status Checkpoint::keep_only(const WeightLayout& kept) {
  DRIFTLESS_RETURN_IF_ERROR(layout_.check_has(kept, path_, "the run"));
  std::vector<TensorLocation> locations;
  std::vector<bool> taken(layout_.size());
  for (const TensorSpec& spec : kept.tensors()) {
    const std::uint32_t number = *layout_.find(spec.name);
    taken[number] = true;
    locations.push_back(locations_[number]);
  }
  for (std::uint32_t tensor = 0; tensor < layout_.size(); ++tensor) {
    if (!taken[tensor]) others_.push_back({layout_[tensor], locations_[tensor]});
  }
  std::ranges::sort(others_, {}, [](const OtherTensor& other) { return other.spec.name; });
  layout_ = kept;
  locations_ = std::move(locations);
  return {};
}

void Checkpoint::forget(std::size_t tensor, std::uint64_t byte_offset,
                        std::uint64_t size_bytes) const {
  const TensorLocation& at = locations_[tensor];
  files_[at.file].file().forget(at.file_offset + byte_offset, size_bytes);
}

}  // namespace driftless
