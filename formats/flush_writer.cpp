// SPDX-License-Identifier: Apache-2.0
// Writing flush files.
#include <cstdio>
#include <string>

#include "formats/flush_file.h"
#include "formats/strict_json.h"
#include "formats/zstd_stream.h"

namespace driftless {
namespace {

std::string joined(std::span<const std::uint64_t> numbers) {
  std::string text;
  for (const std::uint64_t number : numbers) {
    if (!text.empty()) text += ", ";
    text += std::to_string(number);
  }
  return text;
}

// The `params` key: a JSON list in a string.
Result<std::string> params_text(const WeightLayout& layout, const BucketView& bucket) {
  std::string text = "[";
  for (const BucketEntry& entry : bucket.entries) {
    const TensorSpec& tensor = layout[entry.tensor];
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_quote(tensor.name, "flush file"));
    if (text.size() > 1) text += ", ";
    text += concat(R"({"name": )", name, R"(, "dtype": ")", info(tensor.dtype).torch_name,
                   R"(", "shape": [)", joined(tensor.shape), R"(], "pos_start": )",
                   entry.position_begin, R"(, "pos_end": )", entry.position_end,
                   R"(, "pos_width": )", entry.position_bytes, R"(, "val_start": )",
                   entry.value_begin, R"(, "val_end": )", entry.value_end, "}");
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

// Length and JSON, padded so that the data begins at a multiple of 8. Values come first in the
// data, where they are aligned whatever the positions' size.
Result<std::string> header_bytes(const std::map<std::string, std::string>& metadata,
                                 const BucketView& bucket) {
  std::string json = R"({"__metadata__":{)";
  for (const auto& [key, value] : metadata) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string quoted_key, json_quote(key, "flush file"));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string quoted_value, json_quote(value, "flush file"));
    json += concat(quoted_key, ":", quoted_value, ",");
  }
  json.back() = '}';
  const DType stored = info(bucket.dtype).bits < 8 ? DType::kU8 : bucket.dtype;
  const std::uint64_t values = bucket.values.size();
  const std::uint64_t positions = bucket.positions.size();
  json += concat(R"(,"__values__":{"dtype":")", info(stored).name, R"(","shape":[)",
                 values / unit_bytes(bucket.dtype), R"(],"data_offsets":[0,)", values, "]}");
  json += concat(R"(,"__positions__":{"dtype":"U8","shape":[)", positions, R"(],"data_offsets":[)",
                 values, ",", values + positions, "]}}");
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return error(StatusCode::kUnsupported, "a flush file of ", bucket.entries.size(),
                 " tensors needs a header of ", json.size(), " bytes, at most ",
                 kMaxSafetensorsHeaderBytes, " are allowed; use smaller buckets");
  }
  std::string header(8, '\0');
  for (unsigned i = 0; i < 8; ++i) {
    header[i] = static_cast<char>(static_cast<unsigned char>(json.size() >> (8 * i)));
  }
  return header + json;
}

// All that comes before the streams, once the bucket is known to fit.
Result<std::string> make_header(const std::string& path, const WeightLayout& layout,
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
  return header_bytes(metadata, bucket);
}

Status write_parts(std::span<const std::byte> header, const BucketView& bucket,
                   const ByteSink& sink) {
  DRIFTLESS_RETURN_IF_ERROR(sink(header));
  DRIFTLESS_RETURN_IF_ERROR(sink(bucket.values));
  return sink(bucket.positions);
}

Result<std::uint64_t> write_file(File& file, std::string_view text, const BucketView& bucket,
                                 Encoding encoding) {
  const auto header = std::as_bytes(std::span(text.data(), text.size()));
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
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string header,
                             make_header(path, layout, bucket, encoding, version, extra));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.create(path));
  return write_file(*file, header, bucket, encoding);
}

Result<std::uint64_t> write_flush_file(std::unique_ptr<File> file, const WeightLayout& layout,
                                       const BucketView& bucket, Encoding encoding,
                                       std::uint64_t version,
                                       const std::map<std::string, std::string>& extra) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string header,
                             make_header(file->path(), layout, bucket, encoding, version, extra));
  return write_file(*file, header, bucket, encoding);
}

}  // namespace driftless
