// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter: the streaming half of safetensors.h.
#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "formats/safetensors.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::uint64_t kHeaderLengthBytes = 8;

std::uint64_t rounded_up(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// `name` is quoted already.
std::string entry_text(std::string_view name, std::string_view dtype, std::string_view shape,
                       std::uint64_t begin, std::uint64_t end) {
  return concat(name, R"(:{"dtype":")", dtype, R"(","shape":[)", shape, R"(],"data_offsets":[)",
                begin, ",", end, "]}");
}

std::string joined(std::span<const std::uint64_t> numbers) {
  std::string text;
  for (const std::uint64_t number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

// The bytes that a string takes in the header, quotes included. One that is not UTF-8 is never
// written, whatever its bound.
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

struct SafetensorsWriter::State {
  std::unique_ptr<File> file;
  std::uint64_t header_bytes = 0;  // room for the JSON
  std::uint64_t data_bytes = 0;    // taken by append() so far, the buffer included
  std::vector<std::byte> buffer;   // the last of them, not yet written
  std::string entries;             // JSON of the tensors so far, joined by commas
  std::unordered_set<std::string> names;
  std::map<std::string, std::string> metadata;  // quoted keys and values
  bool in_tensor = false;
  std::string name, quoted_name;  // of the tensor being written
  DType dtype = DType::kU8;
  std::uint64_t tensor_begin = 0;
  bool finished = false;
  Status broken;  // the first failure of the file system

  [[nodiscard]] const std::string& path() const { return file->path(); }

  [[nodiscard]] Status check_usable() const {
    DRIFTLESS_RETURN_IF_ERROR(broken);
    if (finished) return error(StatusCode::kInvalidArgument, path(), ": is already finished");
    return {};
  }

  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes) {
    broken = file->pwrite(offset, bytes);
    return broken;
  }

  [[nodiscard]] Status flush() {
    if (buffer.empty()) return {};
    const std::uint64_t begin = kHeaderLengthBytes + header_bytes + data_bytes - buffer.size();
    DRIFTLESS_RETURN_IF_ERROR(write(begin, buffer));
    buffer.clear();
    return {};
  }

  [[nodiscard]] std::string header_json() const {
    std::string json = "{";
    if (!metadata.empty()) {
      json += R"("__metadata__":{)";
      for (const auto& [key, value] : metadata) json += concat(key, ":", value, ",");
      json.back() = '}';
      if (!entries.empty()) json += ',';
    }
    return json + entries + "}";
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(FileSystem& fs, const std::string& path,
                                                    std::uint64_t header_bytes) {
  DRIFTLESS_RETURN_IF_ERROR(check_room(path, header_bytes));  // before there is a file
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.create(path));
  return create(std::move(file), header_bytes);
}

Result<SafetensorsWriter> SafetensorsWriter::create(std::unique_ptr<File> file,
                                                    std::uint64_t header_bytes) {
  DRIFTLESS_RETURN_IF_ERROR(check_room(file->path(), header_bytes));
  auto state = std::make_unique<State>();
  state->header_bytes = std::max<std::uint64_t>(8, rounded_up(header_bytes));
  state->file = std::move(file);
  return SafetensorsWriter(std::move(state));
}

Status SafetensorsWriter::begin_tensor(std::string name, DType dtype) {
  State& state = *state_;
  DRIFTLESS_RETURN_IF_ERROR(state.check_usable());
  if (state.in_tensor) {
    return error(StatusCode::kInvalidArgument, state.path(), ": tensor '", state.name,
                 "' has not ended yet");
  }
  if (const Status status = check_tensor_name(name); !status.ok()) {
    return error(StatusCode::kInvalidArgument, state.path(), ": ", status.message());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(state.quoted_name, json_quote(name, state.path()));
  if (name == "__metadata__" || state.names.contains(name)) {
    return error(StatusCode::kInvalidArgument, state.path(), ": the name '", name,
                 "' is taken already");
  }
  state.name = std::move(name);
  state.dtype = dtype;
  state.tensor_begin = state.data_bytes;
  state.in_tensor = true;
  return {};
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  State& state = *state_;
  DRIFTLESS_RETURN_IF_ERROR(state.check_usable());
  if (!state.in_tensor) {
    return error(StatusCode::kInvalidArgument, state.path(), ": append() outside of a tensor");
  }
  const std::uint64_t used = kHeaderLengthBytes + state.header_bytes + state.data_bytes;
  if (bytes.size() > kMaxSafetensorsFileBytes - used) {
    return error(StatusCode::kInvalidArgument, state.path(), ": tensor '", state.name,
                 "': the file would reach 2^63 bytes");
  }
  while (!bytes.empty()) {
    if (state.buffer.empty() && bytes.size() >= kSafetensorsBufferBytes) {
      const std::size_t whole = bytes.size() - bytes.size() % kSafetensorsBufferBytes;
      const std::uint64_t offset = kHeaderLengthBytes + state.header_bytes + state.data_bytes;
      DRIFTLESS_RETURN_IF_ERROR(state.write(offset, bytes.first(whole)));
      state.data_bytes += whole;
      bytes = bytes.subspan(whole);
      continue;
    }
    const std::size_t taken = std::min(bytes.size(), kSafetensorsBufferBytes - state.buffer.size());
    state.buffer.insert(state.buffer.end(), bytes.begin(),
                        bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    state.data_bytes += taken;
    bytes = bytes.subspan(taken);
    if (state.buffer.size() == kSafetensorsBufferBytes) DRIFTLESS_RETURN_IF_ERROR(state.flush());
  }
  return {};
}

Status SafetensorsWriter::end_tensor(std::vector<std::uint64_t> shape) {
  State& state = *state_;
  DRIFTLESS_RETURN_IF_ERROR(state.check_usable());
  if (!state.in_tensor) {
    return error(StatusCode::kInvalidArgument, state.path(), ": end_tensor() outside of a tensor");
  }
  const Result<TensorSpec> spec = TensorSpec::make(state.name, state.dtype, std::move(shape));
  if (!spec.ok()) {
    return error(StatusCode::kInvalidArgument, state.path(), ": ", spec.status().message());
  }
  const std::uint64_t written = state.data_bytes - state.tensor_begin;
  if (spec->size_bytes != written) {
    return error(StatusCode::kInvalidArgument, state.path(), ": tensor '", state.name,
                 "': ", info(state.dtype).name, " of shape ", spec->shape_string(), " has ",
                 spec->size_bytes, " bytes, ", written, " were appended");
  }
  if (!state.entries.empty()) state.entries += ',';
  state.entries += entry_text(state.quoted_name, info(state.dtype).name, joined(spec->shape),
                              state.tensor_begin, state.data_bytes);
  state.names.insert(std::move(state.name));
  state.in_tensor = false;
  return {};
}

Status SafetensorsWriter::add_metadata(std::string_view key, std::string_view value) {
  State& state = *state_;
  DRIFTLESS_RETURN_IF_ERROR(state.check_usable());
  const std::string what = concat(state.path(), ": metadata");
  DRIFTLESS_ASSIGN_OR_RETURN(std::string quoted_key, json_quote(key, what));
  DRIFTLESS_ASSIGN_OR_RETURN(std::string quoted_value, json_quote(value, what));
  if (!state.metadata.emplace(std::move(quoted_key), std::move(quoted_value)).second) {
    return error(StatusCode::kInvalidArgument, what, ": the key ", shown(key), " is there already");
  }
  return {};
}

Result<std::uint64_t> SafetensorsWriter::finish() {
  State& state = *state_;
  DRIFTLESS_RETURN_IF_ERROR(state.check_usable());
  if (state.in_tensor) {
    return error(StatusCode::kInvalidArgument, state.path(), ": tensor '", state.name,
                 "' has not ended yet");
  }
  std::string json = state.header_json();
  if (json.size() > state.header_bytes) {
    return error(StatusCode::kInternal, state.path(), ": the header has ", json.size(),
                 " bytes, only ", state.header_bytes, " were reserved");
  }
  // While nothing has been written the data can still go anywhere: leave no hole for padding.
  if (state.buffer.size() == state.data_bytes) state.header_bytes = rounded_up(json.size());
  json.resize(state.header_bytes, ' ');
  DRIFTLESS_RETURN_IF_ERROR(state.flush());
  std::string head(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    head[i] = static_cast<char>(static_cast<unsigned char>(state.header_bytes >> (8 * i)));
  }
  head += json;
  DRIFTLESS_RETURN_IF_ERROR(state.write(0, std::as_bytes(std::span(head.data(), head.size()))));
  state.broken = state.file->sync();
  DRIFTLESS_RETURN_IF_ERROR(state.broken);
  state.finished = true;
  return kHeaderLengthBytes + state.header_bytes + state.data_bytes;
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
      entry_text("", longest_dtype, joined(shape), max_number, max_number).size() + 1;
  std::uint64_t bytes = 2;  // the braces
  for (const std::string& name : names) bytes += quoted_bytes(name) + per_tensor;
  if (!metadata.empty()) bytes += std::string_view(R"("__metadata__":{},)").size();
  for (const auto& [key, value] : metadata) bytes += quoted_bytes(key) + quoted_bytes(value) + 2;
  return rounded_up(bytes);
}

}  // namespace driftless
