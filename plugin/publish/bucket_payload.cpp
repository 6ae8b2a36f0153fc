// SPDX-License-Identifier: Apache-2.0
// Writes the changes as buckets: frames or flush files. While one bucket is filled, earlier ones
// are encoded, compressed and written on other threads: one, or, if the road accepts several parts
// at a time, up to kMostWriters. Memory: two buckets and one encoded bucket; with several writers
// the buckets are smaller and take no more in total.
#include <algorithm>

#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

constexpr unsigned kMostWriters = 4;
constexpr std::uint64_t kLeastSharedBytes = std::uint64_t{8} << 20;  // smaller ones have one writer

// How many threads write frames of this payload at a time.
unsigned writers_of(const PayloadContext& context) {
  const bool one = context.directory_layout != DirectoryLayout::kFrames ||
                   context.frames != nullptr || !context.background ||
                   context.buffer_bytes < kLeastSharedBytes || !context.road->writes_at_once();
  // The other half of the processors compares.
  return one ? 1 : std::clamp(context.threads / 2, 1U, kMostWriters);
}

// Writes a frame into a part that was created for it.
Result<Hash128> write_part(const FrameContext& frame, const BucketView& bucket,
                           std::vector<std::byte>& encoded, File& part) {
  if (frame.encoding == Encoding::kDeltasZstd) {  // encoded in memory
    encoded.clear();
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(frame, bucket, encoded));
    DRIFTLESS_RETURN_IF_ERROR(part.pwrite(0, encoded));
    DRIFTLESS_RETURN_IF_ERROR(part.sync());
    return frame_table_hash(encoded);
  }
  std::uint64_t at = 0;
  DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 table,
                             write_frame(frame, bucket, [&](std::span<const std::byte> bytes) {
                               const std::uint64_t offset = std::exchange(at, at + bytes.size());
                               return part.pwrite(offset, bytes);
                             }));
  DRIFTLESS_RETURN_IF_ERROR(part.sync());
  return table;
}

// Hands full buckets to writers. The caller's thread fills a bucket, and numbers and creates its
// part; from then until settle() only the lane's writer uses the lane.
class BucketWriter {
 public:
  // Both outlive the writer.
  BucketWriter(const PayloadContext& context, PayloadFindings& findings)
      : context_(context), findings_(findings), writers_(writers_of(context)) {
    for (unsigned i = 0; i <= writers_; ++i) {
      lanes_.emplace_back(context, context.buffers->bucket(i));
      lanes_.back().bucket.builder.clear();  // left by a failure
    }
    if (context.clock != nullptr) context.clock->has_writers(writers_);
  }

  [[nodiscard]] BucketBuilder& filling() { return lanes_[filling_].bucket.builder; }
  [[nodiscard]] unsigned writers() const { return writers_; }

  // Passes the bucket to a writer, and continues with the next one, which is empty.
  Status hand_over() {
    Lane& full = lanes_[filling_];
    if (full.bucket.builder.empty()) return {};
    if (writers_ == 1) DRIFTLESS_RETURN_IF_ERROR(settle_all());  // one at a time
    const std::uint32_t index = parts_++;
    if (writers_ > 1) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          full.part, context_.road->create_part(frame_file_name(context_.frame.rank, index)));
    }
    DRIFTLESS_RETURN_IF_ERROR(full.writer.hand_over([this, &full, index] {
      Status written = write(full, index);
      full.part.reset();
      full.bucket.builder.clear();
      return written;
    }));
    if (full.writer.background()) filling_ = (filling_ + 1) % lanes_.size();
    return settle(lanes_[filling_]);
  }

  // Waits until all buckets are written.
  Status finish() {
    DRIFTLESS_RETURN_IF_ERROR(hand_over());
    return settle_all();
  }

 private:
  struct Lane {
    Lane(const PayloadContext& context, PayloadBuffers::Bucket& own)
        : bucket(own), writer(context.background, context.clock) {}
    PayloadBuffers::Bucket& bucket;
    std::unique_ptr<File> part;  // if there are several writers
    PayloadFindings findings;    // for this lane's frames
    BackgroundWriter writer;     // last: its thread ends before the other members
  };

  // Runs on the lane's thread.
  Status write(Lane& lane, std::uint32_t index) const {
    const BucketView bucket = lane.bucket.builder.view();
    if (lane.part == nullptr) return write_bucket(context_, bucket, index, lane.findings);
    FrameContext frame = context_.frame;
    frame.index = index;
    DRIFTLESS_ASSIGN_OR_RETURN(lane.findings.tables[frame_file_name(frame.rank, index)],
                               write_part(frame, bucket, lane.bucket.encoded, *lane.part));
    return {};
  }

  // Waits for the lane's thread; then the caller may use the lane again.
  Status settle(Lane& lane) {
    DRIFTLESS_RETURN_IF_ERROR(lane.writer.finish());
    findings_.tables.merge(lane.findings.tables);
    return {};
  }
  // The oldest first: of several failures, the first bucket's is returned.
  Status settle_all() {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      DRIFTLESS_RETURN_IF_ERROR(settle(lanes_[(filling_ + i) % lanes_.size()]));
    }
    return {};
  }

  const PayloadContext& context_;
  PayloadFindings& findings_;
  const unsigned writers_;
  std::size_t filling_ = 0;
  std::uint32_t parts_ = 0;
  std::deque<Lane> lanes_;  // last: their threads end before the other members
};

// Other readers would take an 8-byte position for a 4-byte one without noticing.
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
      : context_(context), writer_(context_, findings_) {}

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
  // The pieces of a tensor arrive one after the other.
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

  // Other readers of flush files read 4-byte gaps. Wider gaps are bridged with unchanged units and
  // their present values.
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

  // When a bucket is full. Nothing overlaps the writing of the last buckets, so a bucket is at most
  // a quarter of what was handed over before it (less with several writers), but at least
  // kFirstBytes. In file layouts every bucket costs a file, so buckets there are filled up.
  [[nodiscard]] std::uint64_t full_at() const {
    constexpr std::uint64_t kFirstBytes = std::uint64_t{2} << 20;
    if (context_.directory_layout != DirectoryLayout::kFrames) return context_.buffer_bytes;
    const std::uint64_t writers = writer_.writers();
    // The limit counts a bucket per writer, the one being filled, and as many encoded ones.
    const std::uint64_t most =
        writers == 1 ? context_.buffer_bytes : context_.buffer_bytes * 3 / (2 * (writers + 1));
    return std::min(most, std::max(kFirstBytes, handed_bytes_ / (writers == 1 ? 4 : 2 * writers)));
  }

  PayloadContext context_;
  std::uint64_t handed_bytes_ = 0;  // of the buckets before the present one
  std::uint32_t number_ = 0;        // the store's number of the tensor being collected
  BlockSplitter splitter_;
  BucketWriter writer_;  // last: its thread ends before the other members
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
  std::vector<std::byte>& encoded = context.buffers->encoded;
  if (context.frames != nullptr) {
    encoded.clear();
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(frame, bucket, encoded));
    return put_frame(context, name, encoded, findings);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, context.road->create_part(name));
  DRIFTLESS_ASSIGN_OR_RETURN(findings.tables[name], write_part(frame, bucket, encoded, *part));
  return {};
}

std::unique_ptr<RankPayload> make_bucket_payload(const PayloadContext& context) {
  return std::make_unique<BucketPayload>(context);
}

}  // namespace driftless
