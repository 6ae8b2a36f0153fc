// The payload of a version directory, opened and checked against a weight layout: which tensors it
// changes, and for each the TensorPatcher that makes its new bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/flush_file.h"
#include "formats/safetensors.h"
#include "formats/tensor_patcher.h"
#include "formats/version_dir.h"

namespace driftless {

struct TensorChange {
  std::uint32_t tensor = 0;         // index in the layout
  std::uint64_t payload_bytes = 0;  // of its encoded delta
  std::string checksum;  // of its new bytes, hexadecimal; empty where the version has none
};

// Holds the payload files mapped. Immutable once open; patchers may be made and used from several
// threads, and must not outlive it.
class VersionSource {
 public:
  // Refuses a tensor that is unknown, is there twice (in two files, by two ranks), is listed but
  // missing or there but not listed, has another dtype or shape, or lacks the checksum it must
  // have. Compressed flush files are inflated into `spool_directory`.
  [[nodiscard]] static Result<VersionSource> open(FileSystem& fs, const VersionDirectory& version,
                                                  const WeightLayout& layout,
                                                  const std::string& spool_directory);

  // Largest tensors first, so that parallel work ends together.
  [[nodiscard]] std::span<const TensorChange> changes() const { return changes_; }
  [[nodiscard]] Result<std::unique_ptr<TensorPatcher>> patcher(const TensorChange& change) const;
  [[nodiscard]] std::uint64_t payload_bytes() const;

 private:
  VersionSource(const VersionDirectory& version, const WeightLayout& layout)
      : version_(&version), layout_(&layout) {}
  Status open_shards(FileSystem& fs);
  Status add_shard(const std::string& name, const SafetensorsFile& shard);
  Status open_flushes(FileSystem& fs, const std::string& spool_directory);
  Status adopt_manifest_checksums();

  struct Payload {
    std::span<const std::byte> bytes;  // hf_delta
    std::vector<BucketPiece> pieces;   // flush
    std::string source;                // the file it was first seen in
  };
  const VersionDirectory* version_;
  const WeightLayout* layout_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::unique_ptr<FlushFile>> flushes_;
  std::map<std::uint32_t, Payload> payloads_;
  std::vector<TensorChange> changes_;
};

}  // namespace driftless
