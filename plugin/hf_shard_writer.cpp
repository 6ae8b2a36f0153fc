#include "plugin/hf_shard_writer.h"

#include <algorithm>

#include "core/parallel.h"
#include "formats/tensor_patcher.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

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
                                                    offsets.data(), values.data(), nullptr);
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

// An upper bound of the header for all candidates, checksums included.
std::uint64_t header_room(const WeightLayout& layout, std::span<const std::uint32_t> candidates,
                          const ShardOptions& options) {
  const bool full = options.encoding == Encoding::kFull;
  const std::string checksum(checksum_hex(options.checksum, {}).size(), '0');
  std::vector<std::string> names;
  std::map<std::string, std::string> metadata;
  if (full) metadata["format"] = "pt";
  std::size_t dimensions = 1;
  std::uint64_t most_bytes = 0;  // zstd adds less than 1 % and a header to what it cannot compress
  for (const std::uint32_t tensor : candidates) {
    const TensorSpec& spec = layout[tensor];
    names.push_back(spec.name);
    if (!full) metadata[spec.name] = checksum;
    dimensions = std::max(dimensions, full ? spec.shape.size() : 1);
    most_bytes += 5 * (spec.size_bytes + spec.size_bytes / 64 + 1024);  // overwrite: 5 per byte
  }
  return SafetensorsWriter::header_bytes_for(names, dimensions, metadata, most_bytes);
}

}  // namespace

Result<std::unique_ptr<HfShardWriter>> HfShardWriter::create(
    std::unique_ptr<File> file, const WeightLayout& layout,
    std::span<const std::uint32_t> candidates, const ShardOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(std::move(file), header_room(layout, candidates, options)));
  std::unique_ptr<HfShardWriter> shard(new HfShardWriter(std::move(writer), layout, options));
  // Loaders ask for it in files that they take for a checkpoint's.
  if (options.encoding == Encoding::kFull) {
    DRIFTLESS_RETURN_IF_ERROR(shard->writer_.add_metadata("format", "pt"));
  }
  return shard;
}

Status HfShardWriter::add(std::span<const Tensor> tensors) {
  const unsigned threads = std::max(1U, options_.threads);
  const std::size_t slots = threads + 1;
  std::vector<Compressed> compressed(slots);
  const auto produce = [&](std::size_t task, std::size_t slot) {
    return compress(tensors[task], compressed[slot]);
  };
  const auto consume = [&](std::size_t task, std::size_t slot) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(append(tensors[task], compressed[slot]));
    const std::uint32_t tensor = tensors[task].tensor;
    checksums_[tensor] = compressed[slot].checksum;
    if (options_.encoding == Encoding::kFull) return {};
    return writer_.add_metadata((*layout_)[tensor].name, compressed[slot].checksum);
  };
  return ordered_pipeline(tensors.size(), threads, slots, produce, consume);
}

Result<std::uint64_t> HfShardWriter::finish() { return writer_.finish(); }

Status HfShardWriter::compress(const Tensor& tensor, Compressed& compressed) const {
  compressed.bytes.clear();
  compressed.checksum = checksum_hex(options_.checksum, tensor.after);
  compressed.too_large = options_.encoding == Encoding::kFull;
  if (compressed.too_large) return {};
  const Status status = encode(tensor, 0, [&](std::span<const std::byte> bytes) {
    compressed.too_large = compressed.bytes.size() + bytes.size() > kBufferedBytes;
    if (compressed.too_large) return error(StatusCode::kNoSpace, "outgrew its buffer");
    compressed.bytes.insert(compressed.bytes.end(), bytes.begin(), bytes.end());
    return Status();
  });
  return compressed.too_large ? Status() : status;
}

Status HfShardWriter::append(const Tensor& tensor, const Compressed& compressed) {
  const TensorSpec& spec = (*layout_)[tensor.tensor];
  if (options_.encoding == Encoding::kFull) {
    DRIFTLESS_RETURN_IF_ERROR(writer_.begin_tensor(spec.name, spec.dtype));
    DRIFTLESS_RETURN_IF_ERROR(writer_.append(tensor.after));
    return writer_.end_tensor(spec.shape);
  }
  DRIFTLESS_RETURN_IF_ERROR(writer_.begin_tensor(spec.name, DType::kU8));
  if (!compressed.too_large) {
    DRIFTLESS_RETURN_IF_ERROR(writer_.append(compressed.bytes));
    return writer_.end_tensor({compressed.bytes.size()});
  }
  std::uint64_t size = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      encode(tensor, std::max(1U, options_.threads), [&](std::span<const std::byte> bytes) {
        size += bytes.size();
        return writer_.append(bytes);
      }));
  return writer_.end_tensor({size});
}

Status HfShardWriter::encode(const Tensor& tensor, unsigned workers, const ByteSink& sink) const {
  if (options_.encoding == Encoding::kXor) {
    return encode_xor(tensor.before, tensor.after, workers, sink);
  }
  return encode_overwrite((*layout_)[tensor.tensor], tensor.before, tensor.after, workers, sink);
}

}  // namespace driftless
