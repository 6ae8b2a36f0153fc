// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/payload_files.h"

#include <map>

#include "formats/flush_file.h"
#include "formats/manifest.h"
#include "formats/version_dir.h"
#include "plugin/checkpoint/compact_writer.h"

namespace driftless {
namespace {

// A bucket holds one type: one is filled for each, however types alternate.
class BucketsByType {
 public:
  // The layout outlives the buckets.
  BucketsByType(const WeightLayout& layout, Encoding coding) : layout_(layout), coding_(coding) {}

  [[nodiscard]] BucketBuilder& of(const DeltaView& delta) {
    return buckets_.try_emplace(layout_[delta.tensor].dtype, layout_, coding_).first->second;
  }
  [[nodiscard]] std::map<DType, BucketBuilder>& all() { return buckets_; }

 private:
  const WeightLayout& layout_;
  Encoding coding_;
  std::map<DType, BucketBuilder> buckets_;
};

class FlushFiles final : public PayloadFiles {
 public:
  FlushFiles(const WeightLayout& layout, PayloadFileOptions options)
      : layout_(layout), options_(std::move(options)), buckets_(layout, options_.frame.encoding) {}

  Status add(const DiffPiece& piece) override {
    BucketBuilder& bucket = buckets_.of(piece.delta);
    if (bucket.size_bytes() >= options_.buffer_bytes) DRIFTLESS_RETURN_IF_ERROR(flush(bucket));
    return bucket.add(piece.delta);
  }
  Result<std::uint64_t> finish() override {
    for (auto& [dtype, bucket] : buckets_.all()) DRIFTLESS_RETURN_IF_ERROR(flush(bucket));
    return payload_bytes_;
  }

 private:
  Status flush(BucketBuilder& bucket) {
    if (bucket.empty()) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                               options_.create(flush_file_name(0, flushes_++)));
    const FrameContext& frame = options_.frame;
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::uint64_t size,
        write_flush_file(std::move(file), layout_, bucket.view(), frame.encoding, frame.id.version,
                         {{"base_version", std::to_string(frame.base_version)},
                          {std::string(kOursKey), std::to_string(kManifestFormat)}}));
    payload_bytes_ += size;
    bucket.clear();
    return {};
  }

  const WeightLayout& layout_;
  PayloadFileOptions options_;
  BucketsByType buckets_;
  std::uint32_t flushes_ = 0;
  std::uint64_t payload_bytes_ = 0;
};

// Codes changes by tensor for `compact`, and in buckets for all other encodings.
class FrameFiles final : public PayloadFiles {
 public:
  FrameFiles(const WeightLayout& layout, PayloadFileOptions options)
      : layout_(layout),
        options_(std::move(options)),
        buckets_(layout, compact() ? Encoding::kDeltas : options_.frame.encoding) {}

  Status add(const DiffPiece& piece) override {
    const DeltaView& delta = piece.delta;
    if (compact() && compact_fields(layout_[delta.tensor].dtype)) return keep(piece);
    BucketBuilder& bucket = buckets_.of(delta);
    if (bucket.size_bytes() >= options_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(write_bucket(bucket));
    }
    return bucket.add(delta);
  }
  Result<std::uint64_t> finish() override {
    for (auto& [dtype, coded] : coded_) DRIFTLESS_RETURN_IF_ERROR(write_blocks(dtype, coded));
    for (auto& [dtype, bucket] : buckets_.all()) DRIFTLESS_RETURN_IF_ERROR(write_bucket(bucket));
    return payload_bytes_;
  }

 private:
  // Changed blocks of one type that are not written yet.
  struct Coded {
    std::vector<ChangedBlock> blocks;
    std::uint64_t bytes = 0;  // of their changes
  };

  [[nodiscard]] bool compact() const { return options_.frame.encoding == Encoding::kCompact; }

  Status keep(const DiffPiece& piece) {
    const DeltaView& delta = piece.delta;
    const DType dtype = layout_[delta.tensor].dtype;
    Coded& coded = coded_[dtype];
    if (coded.blocks.empty() || coded.blocks.back().tensor != delta.tensor) {
      if (coded.bytes >= options_.buffer_bytes) {
        DRIFTLESS_RETURN_IF_ERROR(write_blocks(dtype, coded));
      }
      coded.blocks.push_back({delta.tensor,
                              nullptr,
                              piece.pair->new_data,
                              BlockPlace::all(layout_[delta.tensor].units()),
                              {}});
    }
    coded.bytes += coded.blocks.back().add(delta, piece.old_values);
    return {};
  }

  Status write_blocks(DType dtype, Coded& coded) {
    if (coded.blocks.empty()) return {};
    std::vector<std::byte> frame;
    DRIFTLESS_RETURN_IF_ERROR(encode_changed_blocks(context(Encoding::kCompact), layout_, dtype,
                                                    coded.blocks, options_.threads, frame));
    coded = {};
    return write(frame);
  }
  Status write_bucket(BucketBuilder& bucket) {
    if (bucket.empty()) return {};
    std::vector<std::byte> frame;
    const Encoding encoding = compact() ? Encoding::kDeltas : options_.frame.encoding;
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context(encoding), bucket.view(), frame));
    bucket.clear();
    return write(frame);
  }
  [[nodiscard]] FrameContext context(Encoding encoding) const {
    FrameContext context = options_.frame;
    context.encoding = encoding;
    context.index = frames_;
    return context;
  }
  Status write(std::span<const std::byte> frame) {
    payload_bytes_ += frame.size();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                               options_.create(frame_file_name(0, frames_++)));
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, frame));
    return file->sync();
  }

  const WeightLayout& layout_;
  PayloadFileOptions options_;
  BucketsByType buckets_;
  std::map<DType, Coded> coded_;
  std::uint64_t payload_bytes_ = 0;
  std::uint32_t frames_ = 0;
};

}  // namespace

std::unique_ptr<PayloadFiles> make_flush_files(const WeightLayout& layout,
                                               PayloadFileOptions options) {
  return std::make_unique<FlushFiles>(layout, std::move(options));
}

std::unique_ptr<PayloadFiles> make_frame_files(const WeightLayout& layout,
                                               PayloadFileOptions options) {
  return std::make_unique<FrameFiles>(layout, std::move(options));
}

}  // namespace driftless
