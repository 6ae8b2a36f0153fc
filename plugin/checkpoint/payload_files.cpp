// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/payload_files.h"

#include "formats/flush_file.h"
#include "formats/manifest.h"
#include "formats/version_dir.h"
#include "plugin/checkpoint/compact_writer.h"

namespace driftless {
namespace {

class FlushFiles final : public PayloadFiles {
 public:
  FlushFiles(const WeightLayout& layout, PayloadFileOptions options)
      : layout_(layout), options_(std::move(options)), builder_(layout, options_.frame.encoding) {}

  Status add(const DiffPiece& piece) override {
    if (!builder_.accepts(piece.delta) || builder_.size_bytes() >= options_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(flush());
    }
    return builder_.add(piece.delta);
  }
  Result<std::uint64_t> finish() override {
    DRIFTLESS_RETURN_IF_ERROR(flush());
    return payload_bytes_;
  }

 private:
  Status flush() {
    if (builder_.empty()) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                               options_.create(flush_file_name(0, flushes_++)));
    const FrameContext& frame = options_.frame;
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::uint64_t size,
        write_flush_file(std::move(file), layout_, builder_.view(), frame.encoding,
                         frame.id.version,
                         {{"base_version", std::to_string(frame.base_version)},
                          {std::string(kOursKey), std::to_string(kManifestFormat)}}));
    payload_bytes_ += size;
    builder_.clear();
    return {};
  }

  const WeightLayout& layout_;
  PayloadFileOptions options_;
  BucketBuilder builder_;
  std::uint32_t flushes_ = 0;
  std::uint64_t payload_bytes_ = 0;
};

// Codes changes by tensor for `compact`, and in buckets for all other encodings.
class FrameFiles final : public PayloadFiles {
 public:
  FrameFiles(const WeightLayout& layout, PayloadFileOptions options)
      : layout_(layout),
        options_(std::move(options)),
        builder_(layout, compact() ? Encoding::kDeltas : options_.frame.encoding) {}

  Status add(const DiffPiece& piece) override {
    const DeltaView& delta = piece.delta;
    if (compact() && compact_fields(layout_[delta.tensor].dtype)) return keep(piece);
    if (!builder_.accepts(delta) || builder_.size_bytes() >= options_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(write_bucket());
    }
    return builder_.add(delta);
  }
  Result<std::uint64_t> finish() override {
    DRIFTLESS_RETURN_IF_ERROR(write_blocks());
    DRIFTLESS_RETURN_IF_ERROR(write_bucket());
    return payload_bytes_;
  }

 private:
  [[nodiscard]] bool compact() const { return options_.frame.encoding == Encoding::kCompact; }

  Status keep(const DiffPiece& piece) {
    const DeltaView& delta = piece.delta;
    const auto dtype = [this](std::uint32_t tensor) { return layout_[tensor].dtype; };
    const bool another = blocks_.empty() || blocks_.back().tensor != delta.tensor;
    if (another && !blocks_.empty() &&
        (kept_bytes_ >= options_.buffer_bytes ||
         dtype(delta.tensor) != dtype(blocks_.back().tensor))) {
      DRIFTLESS_RETURN_IF_ERROR(write_blocks());
    }
    if (another) {
      blocks_.push_back({delta.tensor,
                         nullptr,
                         piece.pair->new_data,
                         BlockPlace::all(layout_[delta.tensor].units()),
                         {}});
    }
    kept_bytes_ += blocks_.back().add(delta, piece.old_values);
    return {};
  }

  Status write_blocks() {
    if (blocks_.empty()) return {};
    std::vector<std::byte> frame;
    DRIFTLESS_RETURN_IF_ERROR(encode_changed_blocks(context(Encoding::kCompact), layout_,
                                                    layout_[blocks_.front().tensor].dtype, blocks_,
                                                    options_.threads, frame));
    blocks_.clear();
    kept_bytes_ = 0;
    return write(frame);
  }
  Status write_bucket() {
    if (builder_.empty()) return {};
    std::vector<std::byte> frame;
    const Encoding encoding = compact() ? Encoding::kDeltas : options_.frame.encoding;
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context(encoding), builder_.view(), frame));
    builder_.clear();
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
  BucketBuilder builder_;
  std::vector<ChangedBlock> blocks_;
  std::uint64_t kept_bytes_ = 0;
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
