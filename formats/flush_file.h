// One flush file (rank0000_flush000000.safetensors): a bucket as `__positions__` and `__values__`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/encoding.h"
#include "formats/safetensors.h"

namespace driftless {

[[nodiscard]] std::string flush_file_name(std::uint32_t rank, std::uint32_t flush);

// Writes and syncs a new file; returns its size. `extra` goes into the metadata beside the format's
// own keys.
[[nodiscard]] Result<std::uint64_t> write_flush_file(
    FileSystem& fs, const std::string& path, const WeightLayout& layout, const BucketView& bucket,
    Encoding encoding, std::uint64_t version, const std::map<std::string, std::string>& extra);

// The format's own checksum, decimal: P ^ (V << 1) of 65 bits.
[[nodiscard]] std::string flush_checksum(const BucketView& bucket);

// A flush file read back, with every check: safetensors rules, names, dtypes and shapes against the
// layout, ranges, the checksum, and that current_version is `version`.
class FlushFile {
 public:
  // A compressed file is inflated into an unlinked file in `spool_directory`, so that memory stays
  // bounded whatever its size.
  [[nodiscard]] static Result<FlushFile> open(FileSystem& fs, const std::string& path,
                                              const WeightLayout& layout, std::uint64_t version,
                                              const std::string& spool_directory);

  [[nodiscard]] Encoding encoding() const { return encoding_; }
  [[nodiscard]] BucketView bucket() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;  // plain safetensors bytes
  Encoding encoding_ = Encoding::kIndices;
  DType dtype_ = DType::kU8;
  std::vector<BucketEntry> entries_;
  std::span<const std::byte> positions_, values_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace driftless
