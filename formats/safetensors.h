// SPDX-License-Identifier: Apache-2.0
// safetensors: u64 header length | JSON header | data. Reader over a mapping, streaming writer.
//
// Both enforce the format's rules: a header of at most 100 MB that is a UTF-8 JSON object without
// duplicate keys; offsets contiguous from 0 to the end of the file, without holes or overlaps;
// sizes that agree with dtype and shape; string metadata. An error names the file, the tensor and
// the offsets. The bytes of tensors are not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/hash128.h"
#include "core/layout.h"
#include "core/status.h"

namespace driftless {

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::uint64_t kMaxSafetensorsFileBytes = (std::uint64_t{1} << 63) - 1;
// The most bytes that a writer buffers, and the size of its writes if tensors come in small pieces.
inline constexpr std::size_t kSafetensorsBufferBytes = std::size_t{1} << 20;

struct SafetensorsEntry {
  TensorSpec spec;
  std::uint64_t file_offset = 0;  // of the tensor's first byte
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // ascending by file_offset
  std::map<std::string, std::string> metadata;
  std::uint64_t data_offset = 0;
};

// `file` is the whole file, or at least its header; `file_bytes` is the file's size. `what` names
// it in errors.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file,
                                                                 std::uint64_t file_bytes,
                                                                 std::string_view what);

class SafetensorsFile {
 public:
  [[nodiscard]] static Result<SafetensorsFile> open(FileSystem& fs, const std::string& path);
  // Opens content that is already mapped; its path() names it.
  [[nodiscard]] static Result<SafetensorsFile> open(MappedFile file);

  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const MappedFile& file() const { return file_; }
  [[nodiscard]] std::span<const std::byte> bytes(const SafetensorsEntry& entry) const {
    return file_.bytes().subspan(entry.file_offset, entry.spec.size_bytes);
  }
  // Whether the header and its length are still the bytes that open() read; a mapping shows what
  // other processes write into the file.
  [[nodiscard]] bool header_unchanged() const;
  // Null if there is no such tensor.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  Hash128 header_hash_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes a new file front to back. Data is written as it comes; finish() writes the header into the
// space reserved at the beginning. The file is complete and synced once finish() has returned ok;
// before that it has no valid header. One thread at a time.
class SafetensorsWriter {
 public:
  // `header_bytes` is the space reserved for the header, rounded up to a multiple of 8. finish()
  // returns kInternal if it is too small (header_bytes_for() gives a bound), and fills the rest
  // with spaces. A file whose data is below kSafetensorsBufferBytes gets a header of exactly the
  // size that it needs.
  [[nodiscard]] static Result<SafetensorsWriter> create(FileSystem& fs, const std::string& path,
                                                        std::uint64_t header_bytes);
  // The same for a new, empty file.
  [[nodiscard]] static Result<SafetensorsWriter> create(std::unique_ptr<File> file,
                                                        std::uint64_t header_bytes);

  // Begins a tensor, whose bytes follow through append(). end_tensor() takes the shape, which must
  // agree with the bytes. Names must differ. kInvalidArgument for names or metadata that are not
  // UTF-8. After an error of the file system every further call returns it again.
  [[nodiscard]] Status begin_tensor(std::string name, DType dtype);
  [[nodiscard]] Status append(std::span<const std::byte> bytes);
  [[nodiscard]] Status end_tensor(std::vector<std::uint64_t> shape);
  [[nodiscard]] Status add_metadata(std::string_view key, std::string_view value);
  // Writes the header and syncs. Returns the size of the file. No call may follow.
  [[nodiscard]] Result<std::uint64_t> finish();

  // An upper bound for the header of tensors with these names (each offset and extent up to
  // `max_number`, each shape up to `dimensions` extents) and this metadata.
  [[nodiscard]] static std::uint64_t header_bytes_for(
      std::span<const std::string> names, std::size_t dimensions,
      const std::map<std::string, std::string>& metadata,
      std::uint64_t max_number = kMaxSafetensorsFileBytes);

 private:
  SafetensorsWriter() = default;
  [[nodiscard]] const std::string& path() const { return file_->path(); }
  [[nodiscard]] Status check_usable() const;
  [[nodiscard]] Status check_between_tensors() const;
  [[nodiscard]] std::uint64_t data_end() const;  // in the file
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] Status flush();

  std::unique_ptr<File> file_;
  std::uint64_t header_bytes_ = 0;  // space for the JSON
  std::uint64_t data_bytes_ = 0;    // given to append() so far, including the buffer
  std::vector<std::byte> buffer_;   // the last bytes, not yet written
  std::vector<TensorSpec> tensors_;
  std::set<std::string> names_;
  std::map<std::string, std::string> metadata_;
  bool in_tensor_ = false;
  std::string name_;  // of the tensor being written
  DType dtype_ = DType::kU8;
  std::uint64_t tensor_begin_ = 0;
  bool finished_ = false;
  Status broken_;  // the first failure of the file system
};

// The beginning of a file: the length of the header, and the header of tensors that follow each
// other without gaps, filled with spaces to a multiple of 8 bytes and to at least `room`.
// kInvalidArgument, naming `what`, if a string is not UTF-8.
[[nodiscard]] Result<std::string> safetensors_front(
    const std::map<std::string, std::string>& metadata, std::span<const TensorSpec> tensors,
    std::string_view what, std::uint64_t room = 0);

}  // namespace driftless
