// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter of safetensors.h.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/safetensors.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::uint64_t kHeaderLengthBytes = 8;

std::uint64_t rounded_up(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// `name` is quoted already.
std::string entry_text(std::string_view name, std::string_view dtype,
                       const std::vector<std::uint64_t>& shape, std::uint64_t begin,
                       std::uint64_t end) {
  return concat(name, R"(:{"dtype":")", dtype, R"(","shape":)", Json(shape).dump(),
                R"(,"data_offsets":[)", begin, ",", end, "]}");
}

// The bytes of a string in the header, including quotes. A string that is not UTF-8 is never
// written, whatever this returns.
std::uint64_t quoted_bytes(std::string_view text) {
  const Result<std::string> quoted = json_quote(text, "");
  return quoted.ok() ? quoted->size() : text.size() + 2;
}

Status check_room(const std::string& path, std::uint64_t header_bytes) {
  if (header_bytes <= kMaxSafetensorsHeaderBytes) return {};
  return error(StatusCode::kInvalidArgument, path, ": a header of ", header_bytes,
               " bytes, at most ", kMaxSafetensorsHeaderBytes,
               " are allowed; use more files with fewer tensors each");
}

}  // namespace

Result<std::string> safetensors_front(const std::map<std::string, std::string>& metadata,
                                      std::span<const TensorSpec> tensors, std::string_view what,
                                      std::uint64_t room) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += R"("__metadata__":{)";
    for (const auto& [key, value] : metadata) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string quoted_key, json_quote(key, what));
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string quoted_value, json_quote(value, what));
      json += concat(quoted_key, ":", quoted_value, ",");
    }
    json.back() = '}';
    json += ',';
  }
  std::uint64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_quote(tensor.name, what));
    const std::uint64_t end = begin + tensor.size_bytes;
    json += entry_text(name, info(tensor.dtype).name, tensor.shape, begin, end) + ",";
    begin = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize(std::max(room, rounded_up(json.size())), ' ');
  std::string length(kHeaderLengthBytes, '\0');
  const std::uint64_t bytes = json.size();
  std::memcpy(length.data(), &bytes, sizeof(bytes));  // little-endian, like the processor
  return length + json;
}

Result<SafetensorsWriter> SafetensorsWriter::create(FileSystem& fs, const std::string& path,
                                                    std::uint64_t header_bytes) {
  DRIFTLESS_RETURN_IF_ERROR(check_room(path, header_bytes));  // before the file is created
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.create(path));
  return create(std::move(file), header_bytes);
}

Result<SafetensorsWriter> SafetensorsWriter::create(std::unique_ptr<File> file,
                                                    std::uint64_t header_bytes) {
  DRIFTLESS_RETURN_IF_ERROR(check_room(file->path(), header_bytes));
  SafetensorsWriter writer;
  writer.header_bytes_ = std::max<std::uint64_t>(8, rounded_up(header_bytes));
  writer.file_ = std::move(file);
  return writer;
}

Status SafetensorsWriter::check_usable() const {
  DRIFTLESS_RETURN_IF_ERROR(broken_);
  if (finished_) return error(StatusCode::kInvalidArgument, path(), ": is already finished");
  return {};
}

Status SafetensorsWriter::check_between_tensors() const {
  DRIFTLESS_RETURN_IF_ERROR(check_usable());
  if (!in_tensor_) return {};
  return error(StatusCode::kInvalidArgument, path(), ": tensor '", name_, "' has not ended yet");
}

std::uint64_t SafetensorsWriter::data_end() const {
  return kHeaderLengthBytes + header_bytes_ + data_bytes_;
}

Status SafetensorsWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  return broken_ = file_->pwrite(offset, bytes);
}

Status SafetensorsWriter::flush() {
  if (buffer_.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(write(data_end() - buffer_.size(), buffer_));
  buffer_.clear();
  return {};
}

Status SafetensorsWriter::begin_tensor(std::string name, DType dtype) {
  DRIFTLESS_RETURN_IF_ERROR(check_between_tensors());
  if (const Status status = check_tensor_name(name); !status.ok()) {
    return error(StatusCode::kInvalidArgument, path(), ": ", status.message());
  }
  DRIFTLESS_RETURN_IF_ERROR(json_quote(name, path()).status());
  if (name == "__metadata__" || names_.contains(name)) {
    return error(StatusCode::kInvalidArgument, path(), ": the name '", name, "' is taken already");
  }
  name_ = std::move(name);
  dtype_ = dtype;
  tensor_begin_ = data_bytes_;
  in_tensor_ = true;
  return {};
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  DRIFTLESS_RETURN_IF_ERROR(check_usable());
  if (!in_tensor_) {
    return error(StatusCode::kInvalidArgument, path(), ": append() outside of a tensor");
  }
  if (bytes.size() > kMaxSafetensorsFileBytes - data_end()) {
    return error(StatusCode::kInvalidArgument, path(), ": tensor '", name_,
                 "': the file would reach 2^63 bytes");
  }
  while (!bytes.empty()) {
    if (buffer_.empty() && bytes.size() >= kSafetensorsBufferBytes) {
      const std::size_t whole = bytes.size() - bytes.size() % kSafetensorsBufferBytes;
      DRIFTLESS_RETURN_IF_ERROR(write(data_end(), bytes.first(whole)));
      data_bytes_ += whole;
      bytes = bytes.subspan(whole);
      continue;
    }
    const auto taken =
        bytes.first(std::min(bytes.size(), kSafetensorsBufferBytes - buffer_.size()));
    buffer_.insert(buffer_.end(), taken.begin(), taken.end());
    data_bytes_ += taken.size();
    bytes = bytes.subspan(taken.size());
    if (buffer_.size() == kSafetensorsBufferBytes) DRIFTLESS_RETURN_IF_ERROR(flush());
  }
  return {};
}

Status SafetensorsWriter::end_tensor(std::vector<std::uint64_t> shape) {
  DRIFTLESS_RETURN_IF_ERROR(check_usable());
  if (!in_tensor_) {
    return error(StatusCode::kInvalidArgument, path(), ": end_tensor() outside of a tensor");
  }
  Result<TensorSpec> spec = TensorSpec::make(name_, dtype_, std::move(shape));
  if (!spec.ok()) {
    return error(StatusCode::kInvalidArgument, path(), ": ", spec.status().message());
  }
  const std::uint64_t written = data_bytes_ - tensor_begin_;
  if (spec->size_bytes != written) {
    return error(StatusCode::kInvalidArgument, path(), ": tensor '", name_,
                 "': ", info(dtype_).name, " of shape ", spec->shape_string(), " has ",
                 spec->size_bytes, " bytes, ", written, " were appended");
  }
  tensors_.push_back(std::move(*spec));
  names_.insert(std::move(name_));
  in_tensor_ = false;
  return {};
}

Status SafetensorsWriter::add_metadata(std::string_view key, std::string_view value) {
  DRIFTLESS_RETURN_IF_ERROR(check_usable());
  const std::string what = concat(path(), ": metadata");
  for (const std::string_view text : {key, value}) {
    DRIFTLESS_RETURN_IF_ERROR(json_quote(text, what).status());
  }
  if (metadata_.emplace(key, value).second) return {};
  return error(StatusCode::kInvalidArgument, what, ": the key ", shown(key), " is there already");
}

Result<std::uint64_t> SafetensorsWriter::finish() {
  DRIFTLESS_RETURN_IF_ERROR(check_between_tensors());
  // If no data was written yet, the data can still follow the header directly: the header needs no
  // padding.
  const bool movable = buffer_.size() == data_bytes_;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string front,
      safetensors_front(metadata_, tensors_, path(), movable ? 0 : header_bytes_));
  const std::uint64_t needed = front.size() - kHeaderLengthBytes;
  if (needed > header_bytes_) {
    return error(StatusCode::kInternal, path(), ": the header has ", needed, " bytes, only ",
                 header_bytes_, " were reserved");
  }
  header_bytes_ = needed;
  DRIFTLESS_RETURN_IF_ERROR(flush());
  DRIFTLESS_RETURN_IF_ERROR(write(0, std::as_bytes(std::span(front))));
  DRIFTLESS_RETURN_IF_ERROR(broken_ = file_->sync());
  finished_ = true;
  return data_end();
}

std::uint64_t SafetensorsWriter::header_bytes_for(
    std::span<const std::string> names, std::size_t dimensions,
    const std::map<std::string, std::string>& metadata, std::uint64_t max_number) {
  std::string_view longest_dtype;
  for (const DTypeInfo& dtype : all_dtypes()) {
    if (dtype.name.size() > longest_dtype.size()) longest_dtype = dtype.name;
  }
  const std::vector<std::uint64_t> shape(dimensions, max_number);
  const std::uint64_t per_tensor =
      entry_text("", longest_dtype, shape, max_number, max_number).size() + 1;
  std::uint64_t bytes = 2;  // the braces
  for (const std::string& name : names) bytes += quoted_bytes(name) + per_tensor;
  if (!metadata.empty()) bytes += std::string_view(R"("__metadata__":{},)").size();
  for (const auto& [key, value] : metadata) bytes += quoted_bytes(key) + quoted_bytes(value) + 2;
  return rounded_up(bytes);
}

}  // namespace driftless
