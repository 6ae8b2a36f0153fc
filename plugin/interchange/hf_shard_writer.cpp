// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/hf_shard_writer.h"

#include <algorithm>

#include "core/parallel.h"
#include "formats/manifest.h"
#include "formats/tensor_patcher.h"
#include "formats/version_dir.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

// Tensors are compressed in parallel, each by one thread into memory. A tensor whose payload
// exceeds this size is compressed again, by all threads, directly into the file.
constexpr std::uint64_t kBufferedBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

std::string ours_text() { return std::to_string(kManifestFormat); }

using BytesDelta = std::function<Status(const DeltaView&)>;

// Passes the bytes that differ to `use`, chunk by chunk.
Status compare_bytes(std::span<const std::byte> before, std::span<const std::byte> after,
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

// Passes the bytes that differ within changed units to `use`.
Status split_units(std::span<const HfShardWriter::Changes> changes, const BytesDelta& use) {
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values;
  for (const HfShardWriter::Changes& piece : changes) {
    const DeltaView& delta = piece.delta;
    const unsigned width = delta.unit_bytes;
    offsets.clear();
    values.clear();
    for (std::size_t k = 0; k < delta.count(); ++k) {
      for (unsigned byte = 0; byte < width; ++byte) {
        const std::byte now = delta.values[k * width + byte];
        if (now == piece.old_values[k * width + byte]) continue;
        offsets.push_back((delta.offsets[k] - delta.offsets[0]) * width + byte);
        values.push_back(now);
      }
    }
    if (offsets.empty()) continue;
    const std::uint64_t origin = (delta.origin + delta.offsets[0]) * width;
    DRIFTLESS_RETURN_IF_ERROR(use({0, 1, origin, offsets, values.data()}));
  }
  return {};
}

Status for_changed_bytes(const HfShardWriter::Tensor& tensor, const BytesDelta& use) {
  return tensor.changes.empty() ? compare_bytes(tensor.before, tensor.after, use)
                                : split_units(tensor.changes, use);
}

Status encode_overwrite(const TensorSpec& spec, const HfShardWriter::Tensor& tensor,
                        unsigned workers, const ByteSink& sink) {
  std::uint64_t count = 0;
  DRIFTLESS_RETURN_IF_ERROR(for_changed_bytes(tensor, [&](const DeltaView& delta) {
    count += delta.count();
    return Status();
  }));
  DRIFTLESS_ASSIGN_OR_RETURN(OverwriteEncoder encoder,
                             OverwriteEncoder::create(spec, count, workers, sink));
  DRIFTLESS_RETURN_IF_ERROR(for_changed_bytes(
      tensor, [&](const DeltaView& delta) { return encoder.add_positions(delta); }));
  DRIFTLESS_RETURN_IF_ERROR(
      for_changed_bytes(tensor, [&](const DeltaView& delta) { return encoder.add_values(delta); }));
  return encoder.finish();
}

// XORs changed units into chunks of zeros, in ascending order.
class ChangedUnits {
 public:
  explicit ChangedUnits(std::span<const HfShardWriter::Changes> changes) : changes_(changes) {}

  void fill(std::uint64_t byte_offset, std::span<std::byte> chunk) {
    for (; piece_ < changes_.size(); ++piece_, unit_ = 0) {
      const HfShardWriter::Changes& piece = changes_[piece_];
      const unsigned width = piece.delta.unit_bytes;
      for (; unit_ < piece.delta.count(); ++unit_) {
        const std::uint64_t at =
            (piece.delta.origin + piece.delta.offsets[unit_]) * width - byte_offset;
        if (at >= chunk.size()) return;
        for (unsigned byte = 0; byte < width; ++byte) {
          const std::size_t from = unit_ * width + byte;
          chunk[at + byte] = piece.delta.values[from] ^ piece.old_values[from];
        }
      }
    }
  }

 private:
  std::span<const HfShardWriter::Changes> changes_;
  std::size_t piece_ = 0, unit_ = 0;  // the next one
};

// An upper bound for the size of the header with all candidates, checksums included.
std::uint64_t header_room(const WeightLayout& layout, std::span<const std::uint32_t> candidates,
                          const ShardOptions& options) {
  const bool full = options.encoding == Encoding::kFull;
  const std::string checksum(checksum_hex(options.checksum, {}).size(), '0');
  std::vector<std::string> names;
  std::map<std::string, std::string> metadata;
  if (full) metadata = {{"format", "pt"}, {std::string(kOursKey), ours_text()}};
  std::size_t dimensions = 1;
  std::uint64_t most_bytes = 0;  // for incompressible data zstd adds less than 1 % and a header
  for (const std::uint32_t tensor : candidates) {
    const TensorSpec& spec = layout[tensor];
    names.push_back(spec.name);
    if (!full) metadata[spec.name] = checksum;
    dimensions = std::max(dimensions, full ? spec.shape.size() : 1);
    // `overwrite` writes 5 bytes, a position and a value, for each changed byte.
    most_bytes += 5 * (spec.size_bytes + spec.size_bytes / 64 + 1024);
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
  // Loaders expect this key in a checkpoint's files.
  if (options.encoding == Encoding::kFull) {
    DRIFTLESS_RETURN_IF_ERROR(shard->writer_.add_metadata("format", "pt"));
    // Marks the file as ours, so that it is not taken for another tool's while index and manifest
    // are still missing.
    DRIFTLESS_RETURN_IF_ERROR(shard->writer_.add_metadata(std::string(kOursKey), ours_text()));
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
  if (options_.encoding != Encoding::kXor) {
    return encode_overwrite((*layout_)[tensor.tensor], tensor, workers, sink);
  }
  if (tensor.changes.empty()) return encode_xor(tensor.before, tensor.after, workers, sink);
  ChangedUnits units(tensor.changes);
  const auto fill = [&](std::uint64_t at, std::span<std::byte> chunk) { units.fill(at, chunk); };
  return encode_xor(tensor.after.size(), fill, workers, sink);
}

}  // namespace driftless
