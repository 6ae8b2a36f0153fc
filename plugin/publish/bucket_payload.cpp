// SPDX-License-Identifier: Apache-2.0
// Buckets of the running comparison, as frames or as flush files. While one bucket is filled the
// one before is encoded, compressed and written by a thread of its own: two buckets and one encoded
// one are all that is held.
#include <algorithm>

#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

// Hands full buckets to a writer, one at a time.
class BucketWriter {
 public:
  using Write = std::function<Status(const BucketView&)>;

  BucketWriter(const PayloadContext& context, Write write)
      : builders_(context.buffers->buckets),
        write_(std::move(write)),
        writer_(context.background, context.clock) {
    for (BucketBuilder& builder : builders_) builder.clear();  // what a failure left
  }

  [[nodiscard]] BucketBuilder& filling() { return builders_[filling_]; }

  // Passes the bucket on and turns to the other one, which is empty then.
  Status hand_over() {
    BucketBuilder& full = filling();
    if (full.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over([this, &full] {
      Status written = write_(full.view());
      full.clear();
      return written;
    }));
    if (writer_.background()) filling_ = 1 - filling_;
    return {};
  }

  // Waits until everything that was handed over is written.
  Status finish() {
    DRIFTLESS_RETURN_IF_ERROR(hand_over());
    return writer_.finish();
  }

 private:
  std::array<BucketBuilder, 2>& builders_;
  Write write_;
  std::size_t filling_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before what it uses
};

// Others would read a position of 8 bytes as one of 4, and see no fault.
Status check_widths(const PayloadContext& context, const BucketView& bucket) {
  for (const BucketEntry& entry : bucket.entries) {
    if (entry.position_bytes <= 4) continue;
    return error(
        StatusCode::kUnsupported, "tensor '", (*context.layout)[entry.tensor].name,
        "': a gap between two changes of it does not fit the 4 bytes that readers of flush "
        "files know; set snapshot: host, or road.layout: frames");
  }
  return {};
}

Status write_flush(const PayloadContext& context, const BucketView& bucket, std::uint32_t index) {
  DRIFTLESS_RETURN_IF_ERROR(check_widths(context, bucket));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> part,
                             context.road->create_part(flush_file_name(context.frame.rank, index)));
  const Result<std::uint64_t> size = write_flush_file(
      std::move(part), *context.layout, bucket, context.frame.encoding, context.frame.id.version,
      {{"base_version", std::to_string(context.frame.base_version)},
       {std::string(kOursKey), std::to_string(kManifestFormat)}});
  return size.status();
}

class BucketPayload final : public RankPayload {
 public:
  explicit BucketPayload(const PayloadContext& context)
      : context_(context),
        writer_(context, [this](const BucketView& bucket) { return write(bucket); }) {}

  Status add(std::span<const PairedTensor> batch) override {
    return context_.store->each_change(
        batch, context_.dense_above_units, findings_,
        [this](const DiffPiece& piece) { return collect(piece.delta); });
  }
  Status finish() override {
    DRIFTLESS_RETURN_IF_ERROR(drain());
    return writer_.finish();
  }

 private:
  // A tensor's pieces come one after the other.
  Status collect(DeltaView delta) {
    number_ = delta.tensor;
    const OwnedTensor& owned = context_.store->owned(number_);
    delta.tensor = owned.tensor();
    if (splitter_.owned() != &owned) DRIFTLESS_RETURN_IF_ERROR(drain());
    if (owned.parts().empty()) return put(delta, owned.block());
    splitter_.add(owned, delta);
    return {};
  }
  Status drain() {
    return splitter_.take(
        [this](const DeltaView& delta, const TensorBlock* block) { return put(delta, block); });
  }

  Status put(const DeltaView& delta, const TensorBlock* block) {
    const std::uint64_t size = writer_.filling().size_bytes();
    if (!writer_.filling().accepts(delta) || size >= full_at()) {
      handed_bytes_ += size;
      DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over());
    }
    if (context_.directory_layout == DirectoryLayout::kFlush && !delta.offsets.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(bridge(delta));
    }
    return writer_.filling().add(delta, block);
  }

  // Others that read flush files know gaps of 4 bytes. A wider one is bridged by units that did not
  // change, with the values that they have.
  Status bridge(const DeltaView& delta) {
    constexpr std::uint32_t kHere[] = {0};
    for (;;) {
      const std::uint64_t gap = writer_.filling().gap_before(delta);
      if (gap < context_.position_limit) return {};
      DeltaView unit = delta;
      unit.origin = delta.origin + delta.offsets.front() - gap + context_.position_limit - 1;
      unit.offsets = kHere;
      unit.values = context_.store->bytes(number_).data() + unit.origin * unit.unit_bytes;
      DRIFTLESS_RETURN_IF_ERROR(writer_.filling().add(unit));
    }
  }

  // Nothing overlaps the writing of the last bucket, so none is more than a quarter of what went
  // before it, the first ones apart. In files every bucket costs a file: there they are full.
  [[nodiscard]] std::uint64_t full_at() const {
    constexpr std::uint64_t kFirstBytes = std::uint64_t{2} << 20;
    if (context_.directory_layout != DirectoryLayout::kFrames) return context_.buffer_bytes;
    return std::min(context_.buffer_bytes, std::max(kFirstBytes, handed_bytes_ / 4));
  }

  // On the writer's thread.
  Status write(const BucketView& bucket) {
    return write_bucket(context_, bucket, parts_++, findings_);
  }

  PayloadContext context_;
  std::uint64_t handed_bytes_ = 0;  // of the buckets before the one that is filled
  std::uint32_t parts_ = 0;
  std::uint32_t number_ = 0;  // in the store, of what is collected
  BlockSplitter splitter_;
  BucketWriter writer_;  // last: its thread ends before what it uses
};

}  // namespace

Status write_bucket(const PayloadContext& context, const BucketView& bucket, std::uint32_t index,
                    PayloadFindings& findings) {
  if (context.directory_layout == DirectoryLayout::kFlush) {
    return write_flush(context, bucket, index);
  }
  FrameContext frame = context.frame;
  frame.index = index;
  const std::string name = frame_file_name(frame.rank, index);
  if (frame.encoding == Encoding::kDeltasZstd || context.frames != nullptr) {  // into memory
    std::vector<std::byte>& encoded = context.buffers->encoded;
    encoded.clear();
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(frame, bucket, encoded));
    return put_frame(context, name, encoded, findings);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, context.road->create_part(name));
  std::uint64_t at = 0;
  DRIFTLESS_ASSIGN_OR_RETURN(findings.tables[name],
                             write_frame(frame, bucket, [&](std::span<const std::byte> bytes) {
                               const std::uint64_t offset = std::exchange(at, at + bytes.size());
                               return part->pwrite(offset, bytes);
                             }));
  return part->sync();
}

std::unique_ptr<RankPayload> make_bucket_payload(const PayloadContext& context) {
  return std::make_unique<BucketPayload>(context);
}

}  // namespace driftless
