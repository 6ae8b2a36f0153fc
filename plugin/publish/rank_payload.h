// SPDX-License-Identifier: Apache-2.0
// RankPayload: the contribution of one publisher rank to one publication. It is made from the
// weights as they are offered, and written as parts onto the road:
//
//   source -> store (compares, or has the captured changes) -> blocks -> frames or files -> road
#pragma once

#include <deque>
#include <future>

#include "collectives/road.h"
#include "formats/manifest.h"
#include "plugin/publish/stage_clock.h"
#include "plugin/publish/weight_store.h"

namespace driftless {

// Memory that is kept from version to version, because touching new pages costs as much as the work
// itself.
struct PayloadBuffers {
  struct Bucket {
    BucketBuilder builder;
    std::vector<std::byte> encoded;  // its bytes, if several are encoded at a time
  };

  // Buckets of an encoding without positions hold deltas.
  PayloadBuffers(const WeightLayout& layout, Encoding encoding)
      : layout_(&layout), coding_(bucket_coding(encoding)) {}
  [[nodiscard]] static Encoding bucket_coding(Encoding encoding) {
    return info(encoding).positional ? encoding : Encoding::kDeltas;
  }
  // The reference stays valid.
  [[nodiscard]] Bucket& bucket(std::size_t number) {
    while (buckets_.size() <= number) buckets_.push_back({BucketBuilder(*layout_, coding_), {}});
    return buckets_[number];
  }
  std::vector<std::byte> encoded;  // one bucket, as it goes onto the road

 private:
  const WeightLayout* layout_;
  Encoding coding_;
  std::deque<Bucket> buckets_;
};

// The arguments of a payload. Everything pointed to outlives it.
struct PayloadContext {
  const WeightLayout* layout = nullptr;
  // If set, frames go here and not onto the road.
  std::vector<std::vector<std::byte>>* frames = nullptr;
  WeightStore* store = nullptr;
  PayloadBuffers* buffers = nullptr;
  PartRoad* road = nullptr;
  StageClock* clock = nullptr;
  FrameContext frame;  // run, version, base, layout, encoding, rank
  // Tensors that a version in `compact` carries as `deltas`, ascending.
  std::span<const std::uint32_t> plain;
  DirectoryLayout directory_layout = DirectoryLayout::kFrames;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::uint64_t buffer_bytes = 0;
  std::uint64_t position_limit = std::uint64_t{1} << 32;  // PublisherOptions
  unsigned ranks = 1;
  unsigned threads = 1;
  bool background = true;                               // encode and write on a thread of its own
  std::uint64_t dense_above_units = ~std::uint64_t{0};  // more changed: stop, it is dense
};

struct PayloadFindings : FoundChanges {
  std::vector<ManifestTensor> tensors;    // checksums, if the layout has them; sorted by name
  std::map<std::string, Hash128> tables;  // of frames in host memory: frame_table_hash(), by name
  std::string shard;                      // hf_delta: the file that holds this rank's tensors
  // For whole tensors that the leader assembled from blocks (BlockMirror).
  std::vector<ManifestTensor> mirror_tensors;
  std::string mirror_shard;
};

// Calls come from one thread. After a failure only the destructor may be called; the store then has
// what to roll back.
class RankPayload {
 public:
  virtual ~RankPayload() = default;
  // The batches together have each number of the store once. A batch's data is not used after the
  // call.
  [[nodiscard]] virtual Status add(std::span<const PairedTensor> batch) = 0;
  // Waits until all parts are written to the road.
  [[nodiscard]] virtual Status finish() = 0;
  [[nodiscard]] const PayloadFindings& findings() const { return findings_; }

 protected:
  PayloadFindings findings_;
};

// Chooses by layout and encoding: buckets as frames or flush files, compressed tensors in a shard,
// or, for Encoding::kFull, whole tensors as frames or a shard (WeightStore::take_whole()).
[[nodiscard]] std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context);

// The device's payload, or make_rank_payload()'s if `device` is null.
[[nodiscard]] Result<std::unique_ptr<RankPayload>> make_payload(PublisherDevice* device,
                                                                const PayloadContext& context);

// The kinds that make_rank_payload() chooses from, one file each.
[[nodiscard]] std::unique_ptr<RankPayload> make_bucket_payload(const PayloadContext& context);
[[nodiscard]] std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context);
[[nodiscard]] std::unique_ptr<RankPayload> make_compact_payload(const PayloadContext& context);

// Writes one bucket of a delta as part number `index` of this rank: a frame, or a flush file. Adds
// a frame's table to the findings.
[[nodiscard]] Status write_bucket(const PayloadContext& context, const BucketView& bucket,
                                  std::uint32_t index, PayloadFindings& findings);
// Writes dense runs of tensors as part number `index` of this rank: a full frame.
[[nodiscard]] Status write_full_frame(const PayloadContext& context, DType dtype,
                                      std::span<const DenseRun> runs, std::uint32_t index,
                                      PayloadFindings& findings);
// Writes an encoded frame as a part, or appends it to the context's `frames`.
[[nodiscard]] Status put_frame(const PayloadContext& context, const std::string& name,
                               const std::vector<std::byte>& frame, PayloadFindings& findings);
// Writes one whole part.
[[nodiscard]] Status put_part(SendRoad& road, const std::string& name,
                              std::span<const std::byte> bytes);
[[nodiscard]] Status put_part(PartRoad& road, const std::string& name,
                              std::span<const std::byte> bytes);

// BackgroundWriter: does one piece of work at a time on a thread of its own, while the caller
// prepares the next one.
//
// One thread at a time calls it. The work and everything that it uses outlive the writer, whose
// destructor waits for work that has begun.
class BackgroundWriter {
 public:
  using Work = std::function<Status()>;

  // Without `background`, each call does its work itself. The clock may be null.
  explicit BackgroundWriter(bool background, StageClock* clock = nullptr);

  [[nodiscard]] bool background() const { return background_; }
  // Waits for the previous work, then starts this. After a failure it starts nothing more, and
  // every call returns that failure.
  [[nodiscard]] Status hand_over(Work work);
  // Waits for all work, and returns its status.
  [[nodiscard]] Status finish();

 private:
  bool background_;
  StageClock* clock_;
  Status status_;              // of the finished work
  std::future<Status> begun_;  // its destructor waits for the work
};

}  // namespace driftless
