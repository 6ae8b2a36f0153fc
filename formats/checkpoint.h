// SPDX-License-Identifier: Apache-2.0
// A Hugging Face checkpoint: a directory of safetensors files, read through mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/safetensors.h"
#include "formats/strict_json.h"

namespace driftless {

inline constexpr std::string_view kCheckpointIndexName = "model.safetensors.index.json";
inline constexpr std::uint64_t kMaxCheckpointIndexBytes = 100'000'000;

// The content of model.safetensors.index.json, of a checkpoint or a version directory: the file of
// each tensor.
using TensorFiles = std::map<std::string, std::string>;

// kCorrupt if it is not strict JSON (strict_json.h), if a tensor's name is not usable, or if a
// file's name is not plain. Ignores unknown keys, as every reader of such files does. Errors name
// the index as `what`.
[[nodiscard]] Result<TensorFiles> parse_checkpoint_index(std::string_view text,
                                                         std::string_view what);
// The same for a parsed index.
[[nodiscard]] Result<TensorFiles> read_weight_map(const Json& index, std::string_view what);

// The place of a tensor's bytes.
struct TensorLocation {
  std::uint32_t file = 0;         // index into Checkpoint::files()
  std::uint64_t file_offset = 0;  // of its first byte
};

// A tensor that the checkpoint stores but keep_only() excluded.
struct OtherTensor {
  TensorSpec spec;
  TensorLocation at;
  // The tensor of which this one is a stored copy (a tied lm_head.weight): a writer of that tensor
  // must write this one, too.
  std::optional<std::uint32_t> copy_of{};
};

// A file of a checkpoint's directory. A symbolic link is followed if it stays in the directory, or
// leads from a snapshot in a model hub's cache to a blob of the same repository
// (models--org--name/snapshots/<revision>/... to models--org--name/blobs/..., by real paths);
// otherwise kInvalidArgument. kBusy if the file was replaced while it was opened. The content's
// path() is the real one.
struct CheckpointFile {
  MappedFile content;
  bool linked = false;
};
[[nodiscard]] Result<CheckpointFile> open_checkpoint_file(FileSystem& fs,
                                                          const std::string& directory,
                                                          const std::string& name);

// The files of a checkpoint's directory that hold no weights: configuration, tokenizer. Excludes
// hidden files, sub-directories and files of a version (manifest.json, DONE). `left_out` names the
// other excluded files: links that may not be followed, files that cannot be opened and, if all
// together exceed kMaxCompanionBytes, the largest ones.
inline constexpr std::uint64_t kMaxCompanionBytes = std::uint64_t{256} << 20;
struct Companions {
  std::map<std::string, MappedFile> files;
  std::vector<std::string> left_out;
};
[[nodiscard]] Result<Companions> open_companions(FileSystem& fs, const std::string& directory);

// `path` is a directory with model.safetensors.index.json and the files that it names, a directory
// with one *.safetensors file, or such a file itself. The index and the files must agree on every
// tensor; files that the index does not name are ignored. File names must be plain, and links are
// followed as in open_checkpoint_file(). After setup it is immutable and may be shared between
// threads.
class Checkpoint {
 public:
  [[nodiscard]] static Result<Checkpoint> open(FileSystem& fs, const std::string& path);

  // Limits the checkpoint to the tensors of `kept`, because a checkpoint may store tensors that a
  // run does not publish. kWrongLayout, naming a tensor that is missing or has another type or
  // shape; then nothing changes.
  [[nodiscard]] Status keep_only(const WeightLayout& kept);
  // Records that tensor `other` of others() is a copy of kept tensor `tensor`, of the same type and
  // size.
  void mark_copy(std::size_t other, std::uint32_t tensor) { others_[other].copy_of = tensor; }

  [[nodiscard]] const std::string& path() const { return path_; }
  // path() if it is a directory, otherwise empty.
  [[nodiscard]] std::string directory() const { return directory_ ? path_ : std::string(); }
  // Ascending by name.
  [[nodiscard]] const std::vector<OtherTensor>& others() const { return others_; }
  [[nodiscard]] const WeightLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }
  // The file's name in the directory; files()[file] has the real path.
  [[nodiscard]] const std::string& file_name(std::size_t file) const { return names_[file]; }
  // The hash of the index file's text; empty if there is no index.
  [[nodiscard]] const std::optional<Hash128>& index_hash() const { return index_hash_; }
  // Whether the index or a file is a symbolic link. Such a checkpoint is never written to.
  [[nodiscard]] bool linked() const { return linked_; }
  [[nodiscard]] const TensorLocation& location(std::size_t tensor) const {
    return locations_[tensor];
  }
  [[nodiscard]] TensorView tensor(std::size_t index) const {
    return {&layout_[index], data(locations_[index])};
  }
  [[nodiscard]] TensorView view(const OtherTensor& other) const {
    return {&other.spec, data(other.at)};
  }
  // Calls MappedFile::forget() for a range of a tensor.
  void forget(std::size_t tensor, std::uint64_t byte_offset, std::uint64_t size_bytes) const;

 private:
  [[nodiscard]] Status open_files(FileSystem& fs);
  [[nodiscard]] Status open_shards(FileSystem& fs, const TensorFiles& index);
  [[nodiscard]] Status open_shard(FileSystem& fs, const std::string& name);
  [[nodiscard]] const std::byte* data(const TensorLocation& at) const {
    return files_[at.file].file().bytes().data() + at.file_offset;
  }

  std::string path_;
  WeightLayout layout_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::optional<Hash128> index_hash_;
  bool directory_ = false;
  bool linked_ = false;
  std::vector<TensorLocation> locations_;
  std::vector<OtherTensor> others_;
};

}  // namespace driftless
