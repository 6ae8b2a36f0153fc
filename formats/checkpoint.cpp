// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace driftless {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// What `path` leads to; a symbolic link that the caller names is followed.
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

Result<SafetensorsFile> open_shard(FileSystem& fs, const std::string& directory,
                                   const std::string& file, const std::string& first_tensor) {
  const Status inside = check_inside(fs, directory, file);
  if (inside.code() == StatusCode::kNotFound) {
    return error(StatusCode::kNotFound, join_path(directory, file), ": is missing; ",
                 kCheckpointIndexName, " has tensor ", shown(first_tensor), " in it");
  }
  DRIFTLESS_RETURN_IF_ERROR(inside);
  return SafetensorsFile::open(fs, join_path(directory, file));
}

// The tensors of a file must be exactly those that the index has in it.
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
                   " is in it, but ", kCheckpointIndexName, " has it in ", shown(at->second));
    }
  }
  if (shard.header().tensors.size() == expected_tensors) return {};
  for (const auto& [tensor, home] : index) {
    if (home == file && shard.find(tensor) == nullptr) {
      return error(StatusCode::kCorrupt, shard.file().path(), ": tensor ", shown(tensor),
                   " is not in it, but ", kCheckpointIndexName, " has it there");
    }
  }
  return error(StatusCode::kInternal, shard.file().path(), ": counted ", expected_tensors,
               " tensors in the index");
}

Result<std::vector<SafetensorsFile>> open_shards(FileSystem& fs, const std::string& directory) {
  const std::string name(kCheckpointIndexName);
  const std::string index_path = join_path(directory, name);
  DRIFTLESS_RETURN_IF_ERROR(check_inside(fs, directory, name));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             read_text(fs, index_path, kMaxCheckpointIndexBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const TensorFiles index, parse_checkpoint_index(text, index_path));
  struct Expected {
    std::string first_tensor;
    std::uint64_t tensors = 0;
  };
  std::map<std::string, Expected> expected;
  for (const auto& [tensor, file] : index) {
    Expected& shard = expected.try_emplace(file, Expected{tensor, 0}).first->second;
    ++shard.tensors;
  }
  std::vector<SafetensorsFile> files;
  files.reserve(expected.size());
  for (const auto& [file, shard] : expected) {
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile opened,
                               open_shard(fs, directory, file, shard.first_tensor));
    DRIFTLESS_RETURN_IF_ERROR(check_shard(opened, file, index, shard.tensors));
    files.push_back(std::move(opened));
  }
  return files;
}

Result<std::vector<SafetensorsFile>> open_files(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const bool directory, is_directory(fs, path));
  if (directory) {
    const Result<FileInfo> index = fs.info(join_path(path, kCheckpointIndexName));
    if (index.ok()) return open_shards(fs, path);
    if (index.status().code() != StatusCode::kNotFound) return index.status();
  }
  std::string file = path;
  if (directory) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, only_file(fs, path));
    DRIFTLESS_RETURN_IF_ERROR(check_inside(fs, path, name));
    file = join_path(path, name);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(fs, file));
  std::vector<SafetensorsFile> files;
  files.push_back(std::move(opened));
  return files;
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

Result<Checkpoint> Checkpoint::open(FileSystem& fs, const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  DRIFTLESS_ASSIGN_OR_RETURN(checkpoint.files_, open_files(fs, path));
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
    const std::uint32_t own = *layout_.find(spec.name);
    taken[own] = true;
    locations.push_back(locations_[own]);
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
