// SPDX-License-Identifier: Apache-2.0
// Writes the changes as buckets: frames or flush files. While one bucket is filled, other threads
// encode, compress and write the earlier ones: one thread, or up to kMostWriters if the road
// accepts several parts at a time. If the memory of a change stays valid until the end, the
// bucket's writer also puts the change into the bucket. Memory: two buckets and one encoded bucket;
// with several writers the buckets are smaller, and all together take no more.
//
// A bucket holds one type. Changes of the type that most bytes have go this way; for each other
// type (the scales of FP8 codes, norms) one more bucket is filled meanwhile. Otherwise each scale
// that changes between codes would begin a part.
#include <algorithm>

#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

constexpr unsigned kMostWriters = 16;
constexpr std::uint64_t kFlushShare = 16;  // a flush file has at most 1/16 of the bytes before it
constexpr std::uint64_t kLeastSharedBytes = std::uint64_t{8} << 20;  // smaller ones have one writer

// Whether the road takes several parts of this payload at a time.
bool written_at_once(const PayloadContext& context) {
  return context.frames == nullptr && context.road->writes_at_once();
}

// How many threads write parts of this payload at a time.
unsigned writers_of(const PayloadContext& context) {
  const bool one =
      !written_at_once(context) || !context.background || context.buffer_bytes < kLeastSharedBytes;
  if (one) return 1;
  // Without captured changes, half of the threads compare and the other half write.
  const bool found = context.store->captured();
  return std::clamp(found ? context.threads : context.threads / 2, 1U,
                    found ? kMostWriters : kMostWriters / 2);
}

std::string part_name(const PayloadContext& context, std::uint32_t index) {
  return context.directory_layout == DirectoryLayout::kFlush
             ? flush_file_name(context.frame.rank, index)
             : frame_file_name(context.frame.rank, index);
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

// Other readers would take an 8-byte position for a 4-byte one without noticing.
Status check_widths(const PayloadContext& context, const BucketView& bucket) {
  for (const BucketEntry& entry : bucket.entries) {
    if (entry.position_bytes <= 4) continue;
    return error(
        StatusCode::kUnsupported, "tensor '", (*context.layout)[entry.tensor].name,
        "': a gap between two changes of it does not fit the 4 bytes that readers of flush "
        "files read; set snapshot: host, or road.layout: frames");
  }
  return {};
}

// Writes a flush file into a part that was created for it, and closes it.
Status write_flush(const PayloadContext& context, const BucketView& bucket,
                   std::unique_ptr<File> part) {
  DRIFTLESS_RETURN_IF_ERROR(check_widths(context, bucket));
  const Result<std::uint64_t> size = write_flush_file(
      std::move(part), *context.layout, bucket, context.frame.encoding, context.frame.id.version,
      {{"base_version", std::to_string(context.frame.base_version)},
       {std::string(kOursKey), std::to_string(kManifestFormat)}});
  return size.status();
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

  // The bucket that is filled.
  [[nodiscard]] BucketBuilder& filling() { return lanes_[filling_].bucket.builder; }
  [[nodiscard]] std::uint64_t size_bytes() const {
    return lanes_[filling_].bucket.builder.size_bytes() + lanes_[filling_].noted_bytes;
  }
  Status add(const DeltaView& delta, const TensorBlock* block) {
    Lane& lane = lanes_[filling_];
    DRIFTLESS_RETURN_IF_ERROR(lane.encode());  // noted changes come first
    return lane.bucket.builder.add(delta, block);
  }
  // Adds a delta whose memory outlives the writer: the lane's thread puts it into the bucket.
  Status add_lasting(const DeltaView& delta, const TensorBlock* block) {
    if (writers_ == 1) return add(delta, block);  // this thread is faster than the one writer
    Lane& lane = lanes_[filling_];
    lane.noted.push_back({delta, block});
    lane.noted_bytes += estimate(delta);
    return {};
  }
  [[nodiscard]] unsigned writers() const { return writers_; }

  // Passes the bucket to a writer, and continues with the next one, which is empty.
  Status hand_over() {
    Lane& full = lanes_[filling_];
    if (full.bucket.builder.empty() && full.noted.empty()) return {};
    if (writers_ == 1) DRIFTLESS_RETURN_IF_ERROR(settle_all());  // one part at a time
    const std::uint32_t index = parts_++;
    if (writers_ > 1) {
      DRIFTLESS_ASSIGN_OR_RETURN(full.part, context_.road->create_part(part_name(context_, index)));
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

  // Writes a bucket of the caller's at once.
  Status write(const BucketView& bucket) {
    if (writers_ == 1) DRIFTLESS_RETURN_IF_ERROR(settle_all());  // one part at a time
    return write_bucket(context_, bucket, parts_++, findings_);
  }

  // Waits until all buckets are written.
  Status finish() {
    DRIFTLESS_RETURN_IF_ERROR(hand_over());
    return settle_all();
  }

 private:
  struct Lane {
    Lane(const PayloadContext& context, PayloadBuffers::Bucket& its_bucket)
        : bucket(its_bucket), writer(context.background, context.clock) {}
    // Puts the noted changes into the bucket.
    Status encode() {
      for (const auto& [delta, block] : noted) {
        DRIFTLESS_RETURN_IF_ERROR(bucket.builder.add(delta, block));
      }
      noted.clear();
      noted_bytes = 0;
      return {};
    }

    struct Noted {
      DeltaView delta;
      const TensorBlock* block = nullptr;
    };
    PayloadBuffers::Bucket& bucket;
    std::vector<Noted> noted;       // changes that follow those in the bucket
    std::uint64_t noted_bytes = 0;  // their estimated size in the bucket
    std::unique_ptr<File> part;     // null with one writer
    PayloadFindings findings;       // for this lane's frames
    BackgroundWriter writer;        // last: its thread ends before the other members
  };

  // Estimates the bytes that a delta takes in a bucket, from its mean gap.
  [[nodiscard]] std::uint64_t estimate(const DeltaView& delta) const {
    constexpr std::uint64_t kWideGap = 8192;  // above this mean, some gap probably takes 4 bytes
    const std::uint64_t gap = delta.offsets.empty() ? 0 : delta.offsets.back() / delta.count();
    const bool gaps = PayloadBuffers::bucket_coding(context_.frame.encoding) != Encoding::kIndices;
    return delta.count() * (delta.unit_bytes + (gaps && gap < kWideGap ? 2 : 4));
  }

  // Runs on the lane's thread.
  Status write(Lane& lane, std::uint32_t index) const {
    DRIFTLESS_RETURN_IF_ERROR(lane.encode());
    const BucketView bucket = lane.bucket.builder.view();
    if (lane.part == nullptr) return write_bucket(context_, bucket, index, lane.findings);
    if (context_.directory_layout == DirectoryLayout::kFlush) {
      return write_flush(context_, bucket, std::move(lane.part));
    }
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
  // Settles the oldest bucket first, so the failure returned is that of the first bucket that
  // failed.
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

class BucketPayload final : public RankPayload {
 public:
  explicit BucketPayload(const PayloadContext& context)
      : context_(context), main_(main_type(context)), writer_(context_, findings_) {}

  Status add(std::span<const PairedTensor> batch) override {
    return context_.store->each_change(
        batch, context_.dense_above_units, findings_,
        [this](const DiffPiece& piece) { return collect(piece.delta, piece.lasting); });
  }
  Status finish() override {
    DRIFTLESS_RETURN_IF_ERROR(drain());
    DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over());
    for (const auto& [dtype, bucket] : others_) DRIFTLESS_RETURN_IF_ERROR(write_other(*bucket));
    return writer_.finish();
  }

 private:
  // The type that most bytes of the rank's tensors have.
  [[nodiscard]] static DType main_type(const PayloadContext& context) {
    std::map<DType, std::uint64_t> bytes;
    for (const OwnedTensor& owned : context.store->owned()) {
      const DType dtype = (*context.layout)[owned.tensor()].dtype;
      bytes[dtype] += owned.place().units * unit_bytes(dtype);
    }
    const auto most =
        std::ranges::max_element(bytes, {}, [](const auto& each) { return each.second; });
    return most == bytes.end() ? DType::kU8 : most->first;
  }

  // The pieces of a tensor arrive one after the other.
  Status collect(DeltaView delta, bool lasting) {
    number_ = delta.tensor;
    const OwnedTensor& owned = context_.store->owned(number_);
    delta.tensor = owned.tensor();
    if (splitter_.owned() != &owned) DRIFTLESS_RETURN_IF_ERROR(drain());
    if (owned.parts().empty()) return put(delta, owned.block(), lasting);
    splitter_.add(owned, delta);
    return {};
  }
  Status drain() {
    return splitter_.take([this](const DeltaView& delta, const TensorBlock* block) {
      return put(delta, block, false);
    });
  }

  Status put(const DeltaView& delta, const TensorBlock* block, bool lasting) {
    const DType dtype = (*context_.layout)[delta.tensor].dtype;
    if (dtype != main_) return put_other(other_bucket(dtype), delta, block);
    const std::uint64_t size = writer_.size_bytes();
    if (size >= full_at()) {
      handed_bytes_ += size;
      DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over());
    }
    if (!flush()) return lasting ? writer_.add_lasting(delta, block) : writer_.add(delta, block);
    DRIFTLESS_RETURN_IF_ERROR(bridge(writer_.filling(), delta));
    return writer_.add(delta, block);
  }
  [[nodiscard]] bool flush() const { return context_.directory_layout == DirectoryLayout::kFlush; }

  [[nodiscard]] BucketBuilder& other_bucket(DType dtype) {
    BucketBuilder*& bucket = others_[dtype];
    if (bucket == nullptr) {
      bucket = &context_.buffers->bucket(writer_.writers() + others_.size()).builder;
      bucket->clear();  // left by a failure
    }
    return *bucket;
  }
  Status put_other(BucketBuilder& bucket, const DeltaView& delta, const TensorBlock* block) {
    if (bucket.size_bytes() >= context_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(write_other(bucket));
    }
    if (flush()) DRIFTLESS_RETURN_IF_ERROR(bridge(bucket, delta));
    return bucket.add(delta, block);
  }
  Status write_other(BucketBuilder& bucket) {
    if (!bucket.empty()) DRIFTLESS_RETURN_IF_ERROR(writer_.write(bucket.view()));
    bucket.clear();
    return {};
  }

  // Other readers of flush files read 4-byte gaps. Wider gaps are bridged with unchanged units and
  // their present values.
  Status bridge(BucketBuilder& bucket, const DeltaView& delta) {
    constexpr std::uint32_t kHere[] = {0};
    while (!delta.offsets.empty()) {
      const std::uint64_t gap = bucket.gap_before(delta);
      if (gap < context_.position_limit) return {};
      DeltaView unit = delta;
      unit.origin = delta.origin + delta.offsets.front() - gap + context_.position_limit - 1;
      unit.offsets = kHere;
      unit.values = context_.store->bytes(number_).data() + unit.origin * unit.unit_bytes;
      DRIFTLESS_RETURN_IF_ERROR(bucket.add(unit, nullptr));
    }
    return {};
  }

  // The size at which a bucket is full. No comparison overlaps the writing of the last buckets, so
  // they must be small: a bucket has at most a fraction of the bytes before it, but kFirstBytes at
  // least. A receiver inflates a flush file on a single thread, so a version has enough files to
  // keep several threads busy. A road that takes one part at a time gets few and large flush files.
  [[nodiscard]] std::uint64_t full_at() const {
    constexpr std::uint64_t kFirstBytes = std::uint64_t{2} << 20;
    if (flush() && !written_at_once(context_)) return context_.buffer_bytes;
    const std::uint64_t writers = writer_.writers();
    // One writer needs two buckets and an encoded one. Several share the same memory: a bucket for
    // each writer and the one being filled, and as many encoded ones.
    const std::uint64_t most =
        writers == 1 ? context_.buffer_bytes : context_.buffer_bytes * 3 / (2 * (writers + 1));
    const std::uint64_t share = flush() ? kFlushShare : writers == 1 ? 4 : 2 * writers;
    return std::min(most, std::max(kFirstBytes, handed_bytes_ / share));
  }

  PayloadContext context_;
  std::uint64_t handed_bytes_ = 0;  // of the buckets before the present one
  std::uint32_t number_ = 0;        // the store's number of the tensor being collected
  BlockSplitter splitter_;
  const DType main_;
  std::map<DType, BucketBuilder*> others_;  // of context_.buffers
  BucketWriter writer_;                     // last: its thread ends before the other members
};

}  // namespace

Status write_bucket(const PayloadContext& context, const BucketView& bucket, std::uint32_t index,
                    PayloadFindings& findings) {
  if (context.directory_layout == DirectoryLayout::kFlush) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> part,
                               context.road->create_part(part_name(context, index)));
    return write_flush(context, bucket, std::move(part));
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
