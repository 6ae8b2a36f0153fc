// write_hf_payload(): one shard of compressed tensors, or of whole ones, and the index.
#include <algorithm>
#include <map>
#include <vector>

#include "core/parallel.h"
#include "formats/safetensors.h"
#include "formats/tensor_patcher.h"
#include "kernels/host_kernels.h"
#include "plugin/payload_writer.h"

namespace driftless {
namespace {

constexpr std::string_view kShardName = "model-00000-of-00001.safetensors";
// Tensors are compressed side by side, each by one thread into memory. One whose payload outgrows
// this is compressed again, by all threads, straight into the file.
constexpr std::uint64_t kBufferedBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

using BytesDelta = std::function<Status(const DeltaView&)>;

// The bytes that differ, chunk by chunk.
Status for_changed_bytes(std::span<const std::byte> before, std::span<const std::byte> after,
                         const BytesDelta& use) {
  std::vector<std::uint32_t> offsets(kChunkBytes + kDiffSlackUnits);
  std::vector<std::byte> values(kChunkBytes + kDiffSlackUnits);
  for (std::uint64_t at = 0; at < after.size(); at += kChunkBytes) {
    const auto size = static_cast<std::uint32_t>(std::min(kChunkBytes, after.size() - at));
    const std::uint32_t count = host_kernels().diff(before.data() + at, after.data() + at, size, 1,
                                                    offsets.data(), values.data());
    if (count == 0) continue;
    DRIFTLESS_RETURN_IF_ERROR(use({0, 1, at, {offsets.data(), count}, values.data()}));
  }
  return {};
}

Status encode_overwrite(const TensorSpec& tensor, std::span<const std::byte> before,
                        std::span<const std::byte> after, unsigned workers, const ByteSink& sink) {
  std::uint64_t count = 0;
  DRIFTLESS_RETURN_IF_ERROR(for_changed_bytes(before, after, [&](const DeltaView& delta) {
    count += delta.count();
    return Status();
  }));
  DRIFTLESS_ASSIGN_OR_RETURN(OverwriteEncoder encoder,
                             OverwriteEncoder::create(tensor, count, workers, sink));
  DRIFTLESS_RETURN_IF_ERROR(for_changed_bytes(
      before, after, [&](const DeltaView& delta) { return encoder.add_positions(delta); }));
  DRIFTLESS_RETURN_IF_ERROR(for_changed_bytes(
      before, after, [&](const DeltaView& delta) { return encoder.add_values(delta); }));
  return encoder.finish();
}

class ShardWriter {
 public:
  ShardWriter(FileSystem& fs, const DeltaInput& input, DeltaFindings& findings)
      : fs_(fs), input_(input), findings_(findings) {
    const bool full = input.encoding == Encoding::kFull;
    for (std::uint32_t tensor = 0; tensor < input.layout().size(); ++tensor) {
      if (full || findings.changed_units[tensor] > 0) tensors_.push_back(tensor);
    }
  }

  [[nodiscard]] const std::vector<std::uint32_t>& tensors() const { return tensors_; }

  Status write(const std::string& path) {
    DRIFTLESS_RETURN_IF_ERROR(sum_tensors(input_, tensors_, findings_));
    std::vector<std::string> names;
    std::map<std::string, std::string> metadata;
    for (const std::uint32_t tensor : tensors_) {
      names.push_back(input_.layout()[tensor].name);
      if (input_.encoding != Encoding::kFull) {
        metadata[names.back()] = findings_.checksums[tensor];
      }
    }
    if (input_.encoding == Encoding::kFull) metadata["format"] = "pt";  // loaders ask for it
    std::size_t dimensions = 1;
    std::uint64_t most_bytes =
        0;  // zstd adds less than 1 % and a header to what it cannot compress
    for (const std::uint32_t tensor : tensors_) {
      const TensorSpec& spec = input_.layout()[tensor];
      dimensions = std::max(dimensions, spec.shape.size());
      most_bytes += 5 * (spec.size_bytes + spec.size_bytes / 64 + 1024);  // overwrite: 5 per byte
    }
    const std::uint64_t room = SafetensorsWriter::header_bytes_for(
        names, input_.encoding == Encoding::kFull ? dimensions : 1, metadata, most_bytes);
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                               SafetensorsWriter::create(fs_, path, room));
    for (auto& [name, checksum] : metadata) {
      DRIFTLESS_RETURN_IF_ERROR(writer.add_metadata(name, checksum));
    }
    DRIFTLESS_RETURN_IF_ERROR(write_tensors(writer));
    DRIFTLESS_ASSIGN_OR_RETURN(findings_.payload_bytes, writer.finish());
    return {};
  }

 private:
  // The payload of one tensor, where it is not too large to be held.
  struct Compressed {
    std::vector<std::byte> bytes;
    bool too_large = false;
  };

  Status write_tensors(SafetensorsWriter& writer) {
    const unsigned threads = std::max(1U, input_.options->threads);
    const std::size_t slots = threads + 1;
    std::vector<Compressed> compressed(slots);
    const auto produce = [&](std::size_t task, std::size_t slot) {
      return compress(tensors_[task], compressed[slot]);
    };
    const auto consume = [&](std::size_t task, std::size_t slot) {
      return append(writer, tensors_[task], compressed[slot]);
    };
    return ordered_pipeline(tensors_.size(), threads, slots, produce, consume);
  }

  Status compress(std::uint32_t tensor, Compressed& compressed) const {
    compressed.bytes.clear();
    compressed.too_large = input_.encoding == Encoding::kFull;
    if (compressed.too_large) return {};
    const Status status = encode(tensor, 0, [&](std::span<const std::byte> bytes) {
      compressed.too_large = compressed.bytes.size() + bytes.size() > kBufferedBytes;
      if (compressed.too_large) return error(StatusCode::kNoSpace, "outgrew its buffer");
      compressed.bytes.insert(compressed.bytes.end(), bytes.begin(), bytes.end());
      return Status();
    });
    return compressed.too_large ? Status() : status;
  }

  Status append(SafetensorsWriter& writer, std::uint32_t tensor, const Compressed& compressed) {
    const TensorSpec& spec = input_.layout()[tensor];
    if (input_.encoding == Encoding::kFull) {
      DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(spec.name, spec.dtype));
      DRIFTLESS_RETURN_IF_ERROR(writer.append(input_.after->tensor(tensor).bytes()));
      return writer.end_tensor(spec.shape);
    }
    DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(spec.name, DType::kU8));
    if (!compressed.too_large) {
      DRIFTLESS_RETURN_IF_ERROR(writer.append(compressed.bytes));
      return writer.end_tensor({compressed.bytes.size()});
    }
    std::uint64_t size = 0;
    DRIFTLESS_RETURN_IF_ERROR(encode(tensor, std::max(1U, input_.options->threads),
                                     [&](std::span<const std::byte> bytes) {
                                       size += bytes.size();
                                       return writer.append(bytes);
                                     }));
    return writer.end_tensor({size});
  }

  Status encode(std::uint32_t tensor, unsigned workers, const ByteSink& sink) const {
    const std::span<const std::byte> before = input_.before->tensor(tensor).bytes();
    const std::span<const std::byte> after = input_.after->tensor(tensor).bytes();
    if (input_.encoding == Encoding::kXor) return encode_xor(before, after, workers, sink);
    return encode_overwrite(input_.layout()[tensor], before, after, workers, sink);
  }

  FileSystem& fs_;
  const DeltaInput& input_;
  DeltaFindings& findings_;
  std::vector<std::uint32_t> tensors_;
};

}  // namespace

Status write_hf_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                        DeltaFindings& findings) {
  DRIFTLESS_RETURN_IF_ERROR(compare_checkpoints(input, findings, {}));
  findings.checksums.resize(input.layout().size());
  ShardWriter shard(fs, input, findings);
  HfDeltaIndex index;
  index.ours = true;
  index.version = input.version;
  index.base_version = input.base_version;
  if (input.encoding != Encoding::kFull) index.encoding = input.encoding;
  index.checksum = input.options->checksum;
  if (!shard.tensors().empty()) {
    DRIFTLESS_RETURN_IF_ERROR(shard.write(version.file_path(kShardName)));
  }
  for (const std::uint32_t tensor : shard.tensors()) {
    index.weight_map[input.layout()[tensor].name] = kShardName;
  }
  return write_text(fs, version.file_path(kIndexName), index_to_json(index));
}

}  // namespace driftless
