// SPDX-License-Identifier: Apache-2.0
// Version directories: <dir>/weight_v000007/ with payload, manifest.json and DONE.
//
// A version appears whole: the writer puts everything into a hidden sibling directory, syncs it and
// renames it. Readers also accept directories of other software, without a manifest of Driftless,
// with every check that their contents allow.
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

// Metadata key of an index or a flush file that Driftless wrote: a manifest must be there, too.
inline constexpr std::string_view kOursKey = "driftless_format";
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kDoneName = "DONE";
inline constexpr std::string_view kHdf5Name = "version.h5";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

[[nodiscard]] std::string version_directory_name(std::uint64_t version);  // "weight_v000007"
// The version numbers in `directory`, ascending. Skips hidden and foreign names.
[[nodiscard]] Result<std::vector<std::uint64_t>> list_versions(FileSystem& fs,
                                                               const std::string& directory);

// Writes one version. Removes its files if publish() was not called or failed.
class VersionWriter {
 public:
  // Creates `directory` if it is missing, and locks it against other publishers until this object
  // is destroyed. kAlreadyExists if the version exists.
  [[nodiscard]] static Result<VersionWriter> create(FileSystem& fs, const std::string& directory,
                                                    std::uint64_t version);
  VersionWriter(VersionWriter&&) noexcept = default;
  VersionWriter& operator=(VersionWriter&&) = delete;
  ~VersionWriter();

  // The path at which to create a payload file of this name. The caller must sync the file.
  [[nodiscard]] std::string file_path(std::string_view name) const;
  // Fills manifest.files from the files that exist, writes manifest and DONE, and renames the
  // directory to its final name. After ok the version is durable and visible.
  [[nodiscard]] Status publish(Manifest& manifest);
  [[nodiscard]] const std::string& final_path() const { return final_path_; }

 private:
  VersionWriter(FileSystem& fs, std::string directory, std::uint64_t version);

  FileSystem* fs_;
  std::string directory_;
  std::string final_path_;
  std::string hidden_path_;
  std::unique_ptr<FileLock> lock_;  // null after a move
  bool published_ = false;
};

// model.safetensors.index.json of an hf_delta version.
struct HfDeltaIndex {
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  std::optional<Encoding> encoding;  // absent: a full version
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::map<std::string, std::string> weight_map;  // tensor -> file
  bool ours = false;  // written by Driftless: it has a manifest and DONE
};
[[nodiscard]] std::string index_to_json(const HfDeltaIndex& index);
// `version` is the directory's number; the index of a delta must repeat it.
[[nodiscard]] Result<HfDeltaIndex> parse_index(std::string_view text, std::uint64_t version,
                                               std::string_view what);

// A version as found on disk: what its metadata states, checked for completeness. The payload is
// not yet read.
struct VersionDirectory {
  std::string path;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  DirectoryLayout directory_layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;  // kFull: every tensor, whole
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::optional<Manifest> manifest;               // absent: other software wrote the version
  std::vector<std::string> payload_files;         // *.safetensors, *.frame or version.h5, sorted
  std::map<std::string, std::string> weight_map;  // hf_delta: tensor -> file
  // Whether more files may follow: other software writes flush files without an end mark.
  bool open_ended = false;

  [[nodiscard]] bool full() const { return encoding == Encoding::kFull; }
};

// kNotFound if there is no such version, kIncomplete if a file is not (yet) there, kCorrupt if
// files contradict each other. Other software writes no manifest, and an empty DONE or none; its
// full versions may lack an index if the files' names state their number. A manifest must have the
// hash that DONE states, every file the size that the manifest states, and no payload file may be
// missing or added. For an hdf5 version, whose parts are datasets, only the existence of version.h5
// is checked.
[[nodiscard]] Result<VersionDirectory> open_version(FileSystem& fs, const std::string& directory,
                                                    std::uint64_t version);
// Reads every file that the manifest names and compares its hash. Ok if there is no manifest.
// kUnsupported for an hdf5 version.
[[nodiscard]] Status check_file_hashes(FileSystem& fs, const VersionDirectory& version,
                                       unsigned threads);
// kUnsupported, naming what can read the version, if its parts are not files that can be used for
// patching.
[[nodiscard]] Status check_has_files(const VersionDirectory& version);

}  // namespace driftless
