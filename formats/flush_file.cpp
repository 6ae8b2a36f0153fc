// SPDX-License-Identifier: Apache-2.0
#include "formats/flush_file.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "formats/strict_json.h"
#include "formats/zstd_stream.h"

namespace driftless {
namespace {

constexpr std::size_t kSpoolBytes = std::size_t{1} << 20;  // per write

Status inflate(std::span<const std::byte> frame, std::uint64_t max_bytes, File& file) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader zstd, ZstdReader::open(frame));
  if (zstd.content_bytes() > max_bytes) {
    return error(StatusCode::kCorrupt, zstd.content_bytes(),
                 " bytes of content, more than a flush file of this layout can have (", max_bytes,
                 ")");
  }
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kSpoolBytes, zstd.content_bytes()));
  for (std::uint64_t at = 0; at < zstd.content_bytes();) {
    const auto piece =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), zstd.content_bytes() - at));
    DRIFTLESS_RETURN_IF_ERROR(zstd.read(piece));
    DRIFTLESS_RETURN_IF_ERROR(file.pwrite(at, piece));
    at += piece.size();
  }
  return zstd.finish();
}

// Inflates a compressed file into a file without a name.
Result<MappedFile> spool(FileSystem& fs, const MappedFile& file, const WeightLayout& layout,
                         const std::string& directory) {
  const std::uint64_t max_bytes =
      8 + kMaxSafetensorsHeaderBytes + layout.total_bytes() + 8 * layout.total_units();
  const std::string path = join_path(directory, concat(kSpoolPrefix, to_hex(random_hash128())));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> spooled, fs.create(path));
  const Status status = inflate(file.bytes(), max_bytes, *spooled).with_context(file.path());
  Result<MappedFile> mapped = status.ok() ? fs.map(path) : Result<MappedFile>(status);
  const Status removed = fs.remove_file(path);
  if (mapped.ok() && !removed.ok()) return removed;
  return mapped;
}

Result<std::string_view> required(const std::map<std::string, std::string>& metadata,
                                  const std::string& key, const std::string& path) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) {
    return error(StatusCode::kCorrupt, path, ": the metadata has no '", key,
                 "'; is this a flush file?");
  }
  return std::string_view(at->second);
}

Status check_version(std::string_view text, std::uint64_t version, const std::string& path) {
  std::uint64_t found = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (problem != std::errc() || end != text.data() + text.size()) {
    return error(StatusCode::kCorrupt, path, ": current_version ", shown(text), " is not a number");
  }
  if (found == version) return {};
  return error(StatusCode::kCorrupt, path, ": it is of version ", found, ", expected ", version);
}

// The layout's index of a parameter, which must have the layout's dtype and shape.
Result<std::uint32_t> find_tensor(const WeightLayout& layout, const Json& param,
                                  const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_string(param, "name", path));
  const std::string what = concat(path, ": parameter ", shown(name, 400));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string dtype, json_string(param, "dtype", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> shape,
                             json_u64_list(param, "shape", what));
  const std::optional<std::uint32_t> tensor = layout.find(name);
  if (!tensor) {
    return error(StatusCode::kWrongLayout, what, ": the checkpoint has no such tensor");
  }
  const TensorSpec& ours = layout[*tensor];
  if (info(ours.dtype).torch_name != dtype) {
    return error(StatusCode::kWrongLayout, what, ": dtype ", shown(dtype), ", the checkpoint has ",
                 info(ours.dtype).torch_name);
  }
  if (ours.shape != shape) {
    return error(StatusCode::kWrongLayout, what, ": another shape than the checkpoint's ",
                 ours.shape_string());
  }
  return *tensor;
}

Result<BucketEntry> read_param(const WeightLayout& layout, const Json& param,
                               const std::string& path) {
  BucketEntry entry;
  DRIFTLESS_ASSIGN_OR_RETURN(entry.tensor, find_tensor(layout, param, path));
  const std::string what = concat(path, ": parameter ", shown(layout[entry.tensor].name, 400));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t width, json_u64(param, "pos_width", what));
  if (width > 8) return error(StatusCode::kCorrupt, what, ": pos_width ", width);
  entry.position_bytes = static_cast<unsigned>(width);
  DRIFTLESS_ASSIGN_OR_RETURN(entry.position_begin, json_u64(param, "pos_start", what));
  DRIFTLESS_ASSIGN_OR_RETURN(entry.position_end, json_u64(param, "pos_end", what));
  DRIFTLESS_ASSIGN_OR_RETURN(entry.value_begin, json_u64(param, "val_start", what));
  DRIFTLESS_ASSIGN_OR_RETURN(entry.value_end, json_u64(param, "val_end", what));
  return entry;
}

// --- writing

// The `params` key: a JSON list in a string.
Result<std::string> params_text(const WeightLayout& layout, const BucketView& bucket) {
  std::string text = "[";
  for (const BucketEntry& entry : bucket.entries) {
    const TensorSpec& tensor = layout[entry.tensor];
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_quote(tensor.name, "flush file"));
    if (text.size() > 1) text += ", ";
    text +=
        concat(R"({"name": )", name, R"(, "dtype": ")", info(tensor.dtype).torch_name,
               R"(", "shape": )", tensor.shape_string(), R"(, "pos_start": )", entry.position_begin,
               R"(, "pos_end": )", entry.position_end, R"(, "pos_width": )", entry.position_bytes,
               R"(, "val_start": )", entry.value_begin, R"(, "val_end": )", entry.value_end, "}");
  }
  return text + "]";
}

Result<std::map<std::string, std::string>> make_metadata(
    const WeightLayout& layout, const BucketView& bucket, Encoding encoding, std::uint64_t version,
    const std::map<std::string, std::string>& extra) {
  std::map<std::string, std::string> metadata = extra;
  DRIFTLESS_ASSIGN_OR_RETURN(std::string params, params_text(layout, bucket));
  for (auto& [key, value] : {std::pair<std::string, std::string>("encoding", info(encoding).name),
                             {"params", std::move(params)},
                             {"current_version", std::to_string(version)},
                             {"checksum", flush_checksum(bucket)}}) {
    if (!metadata.emplace(key, value).second) {
      return error(StatusCode::kInvalidArgument, "the metadata key '", key,
                   "' belongs to the flush format");
    }
  }
  return metadata;
}

// Everything before the streams, for a bucket that was checked. Values come first in the data, so
// that they are aligned for any size of the positions.
Result<std::string> make_front(const std::string& path, const WeightLayout& layout,
                               const BucketView& bucket, Encoding encoding, std::uint64_t version,
                               const std::map<std::string, std::string>& extra) {
  const Encoding coding = encoding == Encoding::kDeltasZstd ? Encoding::kDeltas : encoding;
  if (!info(encoding).positional || bucket.coding != coding) {
    return error(StatusCode::kInvalidArgument, path, ": a bucket of ", info(bucket.coding).name,
                 " cannot go into a flush file of ", info(encoding).name);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_bucket(layout, bucket).with_context(path));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto metadata,
                             make_metadata(layout, bucket, encoding, version, extra));
  const DType stored = info(bucket.dtype).bits < 8 ? DType::kU8 : bucket.dtype;
  const std::uint64_t values = bucket.values.size(), positions = bucket.positions.size();
  const TensorSpec tensors[] = {{"__values__", stored, {values / unit_bytes(stored)}, values},
                                {"__positions__", DType::kU8, {positions}, positions}};
  DRIFTLESS_ASSIGN_OR_RETURN(std::string front, safetensors_front(metadata, tensors, "flush file"));
  if (front.size() - 8 <= kMaxSafetensorsHeaderBytes) return front;
  return error(StatusCode::kUnsupported, "a flush file of ", bucket.entries.size(),
               " tensors needs a header of ", front.size() - 8, " bytes, at most ",
               kMaxSafetensorsHeaderBytes, " are allowed; use smaller buckets");
}

Status write_parts(std::span<const std::byte> header, const BucketView& bucket,
                   const ByteSink& sink) {
  DRIFTLESS_RETURN_IF_ERROR(sink(header));
  DRIFTLESS_RETURN_IF_ERROR(sink(bucket.values));
  return sink(bucket.positions);
}

Result<std::uint64_t> write_file(File& file, std::string_view front, const BucketView& bucket,
                                 Encoding encoding) {
  const auto header = std::as_bytes(std::span(front));
  std::uint64_t written = 0;
  const ByteSink to_file = [&](std::span<const std::byte> bytes) {
    written += bytes.size();
    return file.pwrite(written - bytes.size(), bytes);
  };
  if (encoding == Encoding::kDeltasZstd) {
    const std::uint64_t content = header.size() + bucket.values.size() + bucket.positions.size();
    DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter zstd, ZstdWriter::create(content, 0, to_file));
    DRIFTLESS_RETURN_IF_ERROR(write_parts(
        header, bucket, [&zstd](std::span<const std::byte> bytes) { return zstd.write(bytes); }));
    DRIFTLESS_RETURN_IF_ERROR(zstd.finish());
  } else {
    DRIFTLESS_RETURN_IF_ERROR(write_parts(header, bucket, to_file));
  }
  DRIFTLESS_RETURN_IF_ERROR(file.sync());
  return written;
}

}  // namespace

std::string flush_file_name(std::uint32_t rank, std::uint32_t flush) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "rank%04u_flush%06u.safetensors", rank, flush);
  return name.data();
}

Result<std::uint64_t> write_flush_file(FileSystem& fs, const std::string& path,
                                       const WeightLayout& layout, const BucketView& bucket,
                                       Encoding encoding, std::uint64_t version,
                                       const std::map<std::string, std::string>& extra) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string front,
                             make_front(path, layout, bucket, encoding, version, extra));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.create(path));
  return write_file(*file, front, bucket, encoding);
}

Result<std::uint64_t> write_flush_file(std::unique_ptr<File> file, const WeightLayout& layout,
                                       const BucketView& bucket, Encoding encoding,
                                       std::uint64_t version,
                                       const std::map<std::string, std::string>& extra) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string front,
                             make_front(file->path(), layout, bucket, encoding, version, extra));
  return write_file(*file, front, bucket, encoding);
}

Result<FlushFile> FlushFile::open(FileSystem& spool_fs, MappedFile file, const WeightLayout& layout,
                                  std::uint64_t version, const std::string& spool_directory,
                                  unsigned threads) {
  FlushFile result;
  result.path_ = file.path();
  result.file_ = std::move(file);
  if (is_zstd_frame(result.file_.bytes())) {
    DRIFTLESS_ASSIGN_OR_RETURN(result.file_,
                               spool(spool_fs, result.file_, layout, spool_directory));
  }
  DRIFTLESS_RETURN_IF_ERROR(result.read(layout, version, threads));
  return result;
}

Status FlushFile::read(const WeightLayout& layout, std::uint64_t version, unsigned threads) {
  const std::span<const std::byte> bytes = file_.bytes();
  DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsHeader header,
                             parse_safetensors_header(bytes, bytes.size(), path_));
  DRIFTLESS_RETURN_IF_ERROR(read_streams(header));
  metadata_ = std::move(header.metadata);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view current,
                             required(metadata_, "current_version", path_));
  DRIFTLESS_RETURN_IF_ERROR(check_version(current, version, path_));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view name, required(metadata_, "encoding", path_));
  const Result<Encoding> encoding = parse_encoding(name);
  if (!encoding.ok() || !info(*encoding).positional) {
    return error(StatusCode::kCorrupt, path_, ": encoding ", shown(name),
                 ", expected indices, deltas or deltas_zstd");
  }
  encoding_ = *encoding;
  DRIFTLESS_RETURN_IF_ERROR(read_params(layout));
  for (const BucketView& bucket : buckets()) {
    DRIFTLESS_RETURN_IF_ERROR(check_bucket(layout, bucket).with_context(path_));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view stated, required(metadata_, "checksum", path_));
  if (const std::string found = flush_checksum(stored(), threads); found != stated) {
    return error(StatusCode::kCorrupt, path_, ": checksum ", found, ", the file states ",
                 shown(stated));
  }
  return {};
}

Status FlushFile::read_streams(const SafetensorsHeader& header) {
  bool positions = false, values = false;
  for (const SafetensorsEntry& tensor : header.tensors) {
    const auto bytes = file_.bytes().subspan(tensor.file_offset, tensor.spec.size_bytes);
    if (tensor.spec.name == "__positions__" && tensor.spec.dtype == DType::kU8) {
      positions = true;
      positions_ = bytes;
    } else if (tensor.spec.name == "__values__") {
      values = true;
      values_ = bytes;
      stored_dtype_ = dtype_ = tensor.spec.dtype;
    } else {
      return error(StatusCode::kCorrupt, path_, ": tensor ", shown(tensor.spec.name), " of ",
                   info(tensor.spec.dtype).name,
                   ", a flush file has only __positions__ (U8) and __values__");
    }
  }
  if (positions && values) return {};
  return error(StatusCode::kCorrupt, path_, ": ", positions ? "__values__" : "__positions__",
               " is missing");
}

Status FlushFile::read_params(const WeightLayout& layout) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view text, required(metadata_, "params", path_));
  const std::string what = path_ + ": params";
  DRIFTLESS_ASSIGN_OR_RETURN(const Json params, parse_json(text, what));
  if (!params.is_array()) return error(StatusCode::kCorrupt, what, " must be a list");
  std::vector<bool> seen(layout.size(), false);
  bool mixed = false;
  for (const Json& param : params) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BucketEntry entry, read_param(layout, param, path_));
    const TensorSpec& tensor = layout[entry.tensor];
    if (seen[entry.tensor]) {
      return error(StatusCode::kCorrupt, what, ": '", tensor.name, "' appears twice");
    }
    seen[entry.tensor] = true;
    const DType expected = info(tensor.dtype).bits < 8 ? DType::kU8 : tensor.dtype;
    const bool widened = tensor.dtype == DType::kBF16 && stored_dtype_ == DType::kF32;
    if (expected != stored_dtype_ && !widened) {
      return error(StatusCode::kCorrupt, what, ": '", tensor.name, "' is ", info(tensor.dtype).name,
                   ", but the values are ", info(stored_dtype_).name);
    }
    const bool empty =
        entry.position_begin == entry.position_end && entry.value_begin == entry.value_end;
    if (empty) continue;
    mixed = mixed || widened;
    dtype_ = widened ? stored_dtype_ : tensor.dtype;  // check_bucket() refuses mixed dtypes
    entries_.push_back(entry);
  }
  std::sort(entries_.begin(), entries_.end(), [](const BucketEntry& a, const BucketEntry& b) {
    return a.position_begin < b.position_begin;
  });
  return mixed ? take_apart(layout) : Status();
}

// Converts values that torch widened to F32 back.
static Status narrow(std::span<const std::byte> wide, std::vector<std::byte>& values) {
  for (std::size_t at = 0; at < wide.size(); at += 4) {
    if (wide[at] != std::byte{0} || wide[at + 1] != std::byte{0}) {
      return error(StatusCode::kCorrupt, "value ", at / 4, " is no BF16 that was widened to F32");
    }
    values.insert(values.end(), wide.begin() + static_cast<std::ptrdiff_t>(at) + 2,
                  wide.begin() + static_cast<std::ptrdiff_t>(at) + 4);
  }
  return {};
}

Status FlushFile::take_apart(const WeightLayout& layout) {
  std::uint64_t position_end = 0, value_end = 0;
  for (BucketEntry entry : entries_) {
    const TensorSpec& tensor = layout[entry.tensor];
    const std::string what = concat(path_, ": parameter ", shown(tensor.name, 400));
    if (entry.position_begin != position_end || entry.value_begin != value_end ||
        entry.position_end < position_end || entry.value_end < value_end ||
        entry.position_end > positions_.size() || entry.value_end > values_.size() / 4) {
      return error(StatusCode::kCorrupt, what, ": positions from byte ", entry.position_begin,
                   " to ", entry.position_end, " and values from ", entry.value_begin, " to ",
                   entry.value_end, ", expected them to begin at ", position_end, " and ",
                   value_end, " and to end inside the streams");
    }
    position_end = entry.position_end;
    value_end = entry.value_end;
    auto bucket = std::ranges::find(apart_, tensor.dtype, &DtypeBucket::dtype);
    if (bucket == apart_.end()) {
      bucket = apart_.insert(apart_.end(), DtypeBucket{.dtype = tensor.dtype});
    }
    const auto positions =
        positions_.subspan(entry.position_begin, entry.position_end - entry.position_begin);
    const auto values =
        values_.subspan(4 * entry.value_begin, 4 * (entry.value_end - entry.value_begin));
    const unsigned width = unit_bytes(tensor.dtype);
    entry.position_begin = bucket->positions.size();
    entry.value_begin = bucket->values.size() / width;
    bucket->positions.insert(bucket->positions.end(), positions.begin(), positions.end());
    if (width == 4) {
      bucket->values.insert(bucket->values.end(), values.begin(), values.end());
    } else {
      DRIFTLESS_RETURN_IF_ERROR(narrow(values, bucket->values).with_context(what));
    }
    entry.position_end = bucket->positions.size();
    entry.value_end = bucket->values.size() / width;
    bucket->entries.push_back(entry);
  }
  if (position_end == positions_.size() && value_end == values_.size() / 4) return {};
  return error(StatusCode::kCorrupt, path_, ": the parameters have ", position_end,
               " position bytes of ", positions_.size(), ", and ", value_end, " values of ",
               values_.size() / 4);
}

BucketView FlushFile::stored() const {
  const Encoding coding = encoding_ == Encoding::kIndices ? Encoding::kIndices : Encoding::kDeltas;
  return {coding, dtype_, entries_, positions_, values_};
}

std::vector<BucketView> FlushFile::buckets() const {
  if (apart_.empty()) return {stored()};
  std::vector<BucketView> views;
  for (const DtypeBucket& bucket : apart_) {
    views.push_back(
        {stored().coding, bucket.dtype, bucket.entries, bucket.positions, bucket.values});
  }
  return views;
}

}  // namespace driftless
