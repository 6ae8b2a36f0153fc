// SPDX-License-Identifier: Apache-2.0
// safetensors: u64 header length | JSON header | data. Reader over a mapping, streaming writer.
//
// Both hold the format's rules: a header of at most 100 MB that is a UTF-8 JSON object without
// duplicate keys; offsets contiguous from 0 to the end of the file, without holes or overlaps;
// sizes that agree with dtype and shape; string metadata. An error names the file, the tensor and
// the offsets. Bytes of tensors are not looked at.
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
// What a writer holds back at most, and the size of its writes where tensors come in small pieces.
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

// `file` is the whole file, or at least its header; `file_bytes` its true size. `what` names it.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file,
                                                                 std::uint64_t file_bytes,
                                                                 std::string_view what);

class SafetensorsFile {
 public:
  [[nodiscard]] static Result<SafetensorsFile> open(FileSystem& fs, const std::string& path);
  // Content that is there already; its path() names it.
  [[nodiscard]] static Result<SafetensorsFile> open(MappedFile file);

  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const MappedFile& file() const { return file_; }
  [[nodiscard]] std::span<const std::byte> bytes(const SafetensorsEntry& entry) const {
    return file_.bytes().subspan(entry.file_offset, entry.spec.size_bytes);
  }
  // Whether the bytes before the tensors, the header and its length, are those that open() read:
  // a mapping shows what others write into the file.
  [[nodiscard]] bool header_unchanged() const;
  // Null where there is no such tensor.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  Hash128 header_hash_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes a new file front to back. Data goes out as it comes; the header, whose place is reserved
// at the beginning, is written by finish(). The file is complete and synced once finish() returned
// ok; before that it has no valid header. One thread at a time.
class SafetensorsWriter {
 public:
  // `header_bytes` is the room reserved for the header, rounded up to a multiple of 8; finish()
  // fails with kInternal where it is too small (header_bytes_for() gives a bound), and fills what
  // is left over with spaces. A file whose data is below kSafetensorsBufferBytes gets a header of
  // exactly the size that it needs.
  [[nodiscard]] static Result<SafetensorsWriter> create(FileSystem& fs, const std::string& path,
                                                        std::uint64_t header_bytes);
  // The same into a new, empty file.
  [[nodiscard]] static Result<SafetensorsWriter> create(std::unique_ptr<File> file,
                                                        std::uint64_t header_bytes);

  // The tensor's bytes follow through append(); end_tensor() takes the shape, which must agree with
  // them. Names must differ. What is not UTF-8, here or in metadata, is kInvalidArgument. After an
  // error of the file system every further call repeats it.
  [[nodiscard]] Status begin_tensor(std::string name, DType dtype);
  [[nodiscard]] Status append(std::span<const std::byte> bytes);
  [[nodiscard]] Status end_tensor(std::vector<std::uint64_t> shape);
  [[nodiscard]] Status add_metadata(std::string_view key, std::string_view value);
  // Writes the header and syncs. Returns the size of the file. Nothing may be called afterwards.
  [[nodiscard]] Result<std::uint64_t> finish();

  // An upper bound for the header of tensors with these names (no offset or extent above
  // `max_number`, at most `dimensions` extents each), with this metadata.
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
  std::uint64_t header_bytes_ = 0;  // room for the JSON
  std::uint64_t data_bytes_ = 0;    // taken by append() so far, the buffer included
  std::vector<std::byte> buffer_;   // the last of them, not yet written
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

// What a file begins with: the length of its header and the header, of tensors that lie one behind
// the other, filled up with spaces to a multiple of 8 bytes, `room` at least. kInvalidArgument,
// naming `what`, if a string is not UTF-8.
[[nodiscard]] Result<std::string> safetensors_front(
    const std::map<std::string, std::string>& metadata, std::span<const TensorSpec> tensors,
    std::string_view what, std::uint64_t room = 0);

}  // namespace driftless
