// SPDX-License-Identifier: Apache-2.0
// One flush file (rank0000_flush000000.safetensors): a bucket as `__positions__` (bytes) and
// `__values__` (a 1-D tensor of the bucket's dtype; bytes for packed types of less than 8 bits),
// with the table as JSON in the metadata. Under `deltas_zstd` the whole file is one zstd frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/encoding.h"
#include "formats/safetensors.h"

namespace driftless {

// Prefix of the name of a file that receives inflated bytes. The file has a name only for a moment;
// the owner of the spool directory removes files that a killed process left.
inline constexpr std::string_view kSpoolPrefix = ".driftless-spool-";

[[nodiscard]] std::string flush_file_name(std::uint32_t rank, std::uint32_t flush);

// Writes and syncs a new file, and returns its size. The bucket's coding must match the encoding.
// `extra` goes into the metadata besides the format's own keys.
[[nodiscard]] Result<std::uint64_t> write_flush_file(
    FileSystem& fs, const std::string& path, const WeightLayout& layout, const BucketView& bucket,
    Encoding encoding, std::uint64_t version, const std::map<std::string, std::string>& extra);
// The same for a new, empty file, which is closed at the end.
[[nodiscard]] Result<std::uint64_t> write_flush_file(
    std::unique_ptr<File> file, const WeightLayout& layout, const BucketView& bucket,
    Encoding encoding, std::uint64_t version, const std::map<std::string, std::string>& extra);

// The format's own checksum, decimal: P ^ (V << 1), of 65 bits. P is the XOR of all bytes of the
// positions. V is the XOR of all values, each widened to 64 bits first: a floating-point value to
// the bits of the equal float64; integers, bool and the bytes of packed types by their value. A NaN
// keeps its sign and payload (shifted up to float64's mantissa) and becomes quiet; the only NaN of
// a type without payloads (F8_E8M0, the FNUZ types) becomes 0x7ff8000020000000. C64 counts as two
// F32. `threads` threads share large streams.
[[nodiscard]] std::string flush_checksum(const BucketView& bucket, unsigned threads = 1);

// Reads a flush file with every check: safetensors rules; names, dtypes and shapes against the
// layout (kWrongLayout); ranges; the checksum; and that current_version is `version`. Files of
// other writers may have more metadata, any order of parameters, and parameters without changes,
// which are skipped. They may also mix parameters of BF16 and F32: torch then stores all values as
// F32, and each value of a BF16 parameter must be a widened BF16. EntryCursor checks the positions.
// The first bytes of a file, not its encoding, decide whether it is compressed.
class FlushFile {
 public:
  // Opens content that is already mapped; its path() names it. A compressed file is inflated into
  // an unlinked file in `spool_directory`, so that memory stays bounded for any size. The layout
  // may be destroyed after the call. `threads` share the checksum.
  [[nodiscard]] static Result<FlushFile> open(FileSystem& spool_fs, MappedFile file,
                                              const WeightLayout& layout, std::uint64_t version,
                                              const std::string& spool_directory,
                                              unsigned threads = 1);

  [[nodiscard]] Encoding encoding() const { return encoding_; }
  // One bucket for each dtype of its parameters.
  [[nodiscard]] std::vector<BucketView> buckets() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  [[nodiscard]] Status read(const WeightLayout& layout, std::uint64_t version, unsigned threads);
  [[nodiscard]] Status read_streams(const SafetensorsHeader& header);
  [[nodiscard]] Status read_params(const WeightLayout& layout);
  [[nodiscard]] Status take_apart(const WeightLayout& layout);
  [[nodiscard]] BucketView stored() const;

  // One dtype's part of a file that mixes dtypes.
  struct DtypeBucket {
    DType dtype = DType::kU8;
    std::vector<BucketEntry> entries = {};
    std::vector<std::byte> positions = {}, values = {};
  };
  std::string path_;
  MappedFile file_;  // safetensors bytes, inflated
  Encoding encoding_ = Encoding::kIndices;
  DType dtype_ = DType::kU8;         // of the parameters
  DType stored_dtype_ = DType::kU8;  // of `__values__`
  std::vector<BucketEntry> entries_;
  std::vector<DtypeBucket> apart_;  // empty: the file has one dtype
  std::span<const std::byte> positions_, values_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace driftless
