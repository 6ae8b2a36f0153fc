// SPDX-License-Identifier: Apache-2.0
// Version directories: <dir>/weight_v000007/ with payload, manifest.json and DONE.
//
// A version appears whole: everything is written into a hidden sibling directory, synced, and
// renamed. Directories written by others, without a manifest of ours, are read too, with every
// check that their contents allow.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "formats/checksum.h"
#include "formats/encoding.h"
#include "formats/manifest.h"

namespace driftless {

// In the metadata of an index or a flush file of ours: a manifest belongs to it.
inline constexpr std::string_view kOursKey = "driftless_format";
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kDoneName = "DONE";
inline constexpr std::string_view kHdf5Name = "version.h5";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

[[nodiscard]] std::string version_directory_name(std::uint64_t version);  // "weight_v000007"
// The version numbers in `directory`, ascending. Hidden and foreign names are passed over.
[[nodiscard]] Result<std::vector<std::uint64_t>> list_versions(FileSystem& fs,
                                                               const std::string& directory);

// Writes one version. Removes what it wrote where publish() was not reached or failed.
class VersionWriter {
 public:
  // Makes `directory` where it is missing, and locks it against other publishers until destroyed.
  // kAlreadyExists where the version is there.
  [[nodiscard]] static Result<VersionWriter> create(FileSystem& fs, const std::string& directory,
                                                    std::uint64_t version);
  VersionWriter(VersionWriter&&) noexcept = default;
  VersionWriter& operator=(VersionWriter&&) = delete;
  ~VersionWriter();

  // Where a payload file of this name is to be made. The files must be synced by who writes them.
  [[nodiscard]] std::string file_path(std::string_view name) const;
  // Fills manifest.files from what is there, writes manifest and DONE, and renames the directory to
  // its final name. Once it returns ok the version is durable and visible.
  [[nodiscard]] Status publish(Manifest& manifest);
  [[nodiscard]] const std::string& final_path() const { return final_path_; }

 private:
  VersionWriter(FileSystem& fs, std::string directory, std::uint64_t version);

  FileSystem* fs_;
  std::string directory_;
  std::string final_path_;
  std::string hidden_path_;
  std::unique_ptr<FileLock> lock_;  // null once moved from
  bool published_ = false;
};

// model.safetensors.index.json of an hf_delta version.
struct HfDeltaIndex {
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  std::optional<Encoding> encoding;  // absent: a full version
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::map<std::string, std::string> weight_map;  // tensor -> file
  bool ours = false;  // written by Driftless: manifest and DONE belong to it
};
[[nodiscard]] std::string index_to_json(const HfDeltaIndex& index);
// `version` is the directory's, which a delta's index must repeat.
[[nodiscard]] Result<HfDeltaIndex> parse_index(std::string_view text, std::uint64_t version,
                                               std::string_view what);

// A version as found on disk: what it claims, checked for completeness. Payload is not read yet.
struct VersionDirectory {
  std::string path;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  DirectoryLayout directory_layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;  // kFull: every tensor, whole
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::optional<Manifest> manifest;               // absent: written by others
  std::vector<std::string> payload_files;         // *.safetensors, *.frame or version.h5, sorted
  std::map<std::string, std::string> weight_map;  // hf_delta: tensor -> file
  bool open_ended = false;  // nothing says that more files may not follow: flush files of others

  [[nodiscard]] bool full() const { return encoding == Encoding::kFull; }
};

// kNotFound where there is no such version, kIncomplete where a part is not there (yet), kCorrupt
// where parts contradict each other. Others write no manifest, and an empty DONE or none; their
// full versions may lack an index if the files' names say how many there are. With a manifest:
// DONE, the manifest's hash, and the size of every file are checked; nothing may be missing or
// added among the payload files. Of an hdf5 version, whose parts are datasets, only that version.h5
// is there.
[[nodiscard]] Result<VersionDirectory> open_version(FileSystem& fs, const std::string& directory,
                                                    std::uint64_t version);
// Reads every file that the manifest names and compares its hash. Ok where there is no manifest.
// kUnsupported for an hdf5 version.
[[nodiscard]] Status check_file_hashes(FileSystem& fs, const VersionDirectory& version,
                                       unsigned threads);
// kUnsupported, saying who reads it, where the parts are not files that can be patched from.
[[nodiscard]] Status check_has_files(const VersionDirectory& version);

}  // namespace driftless
