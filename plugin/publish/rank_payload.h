// SPDX-License-Identifier: Apache-2.0
// RankPayload: what one publisher rank contributes to one publication, made from the weights as
// they are offered and written as parts onto the road:
//
//   source -> store (compares, or knows what was captured) -> blocks -> frames or files -> road
#pragma once

#include <deque>
#include <future>

#include "collectives/road.h"
#include "formats/manifest.h"
#include "plugin/publish/stage_clock.h"
#include "plugin/publish/weight_store.h"

namespace driftless {

// Memory that is kept from version to version: touching new pages for each would cost as much as
// the work itself.
struct PayloadBuffers {
  struct Bucket {
    BucketBuilder builder;
    std::vector<std::byte> encoded;  // of it, if several are encoded at a time
  };

  // Buckets of an encoding without positions hold deltas.
  PayloadBuffers(const WeightLayout& layout, Encoding encoding)
      : layout_(&layout), coding_(bucket_coding(encoding)) {}
  [[nodiscard]] static Encoding bucket_coding(Encoding encoding) {
    return info(encoding).positional ? encoding : Encoding::kDeltas;
  }
  // Stays where it is.
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

// What a payload is made with. Everything pointed to outlives it.
struct PayloadContext {
  const WeightLayout* layout = nullptr;
  // Frames go here and not onto the road, if it is set.
  std::vector<std::vector<std::byte>>* frames = nullptr;
  WeightStore* store = nullptr;
  PayloadBuffers* buffers = nullptr;
  PartRoad* road = nullptr;
  StageClock* clock = nullptr;
  FrameContext frame;  // run, version, base, layout, encoding, rank
  // Tensors that go as `deltas` in a version in `compact`, ascending.
  std::span<const std::uint32_t> plain;
  DirectoryLayout directory_layout = DirectoryLayout::kFrames;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::uint64_t buffer_bytes = 0;
  std::uint64_t position_limit = std::uint64_t{1} << 32;  // PublisherOptions
  unsigned ranks = 1;
  unsigned threads = 1;
  bool background = true;                               // encode and write on a thread of its own
  std::uint64_t dense_above_units = ~std::uint64_t{0};  // more changed than this: stop, it is dense
};

struct PayloadFindings : FoundChanges {
  std::vector<ManifestTensor> tensors;    // checksums, where the layout has them; in order of names
  std::map<std::string, Hash128> tables;  // of frames in host memory: frame_table_hash(), by name
  std::string shard;                      // hf_delta: the file that holds this rank's tensors
  // Of whole tensors that were put together from blocks: the leader's.
  std::vector<ManifestTensor> mirror_tensors;
  std::string mirror_shard;
};

// Calls come from one thread. After a failure only the destructor may be called; the store then
// knows what is to be rolled back.
class RankPayload {
 public:
  virtual ~RankPayload() = default;
  // Each number of the store once, in batches; a batch's data is not needed after the call.
  [[nodiscard]] virtual Status add(std::span<const PairedTensor> batch) = 0;
  // All parts are on the road.
  [[nodiscard]] virtual Status finish() = 0;
  [[nodiscard]] const PayloadFindings& findings() const { return findings_; }

 protected:
  PayloadFindings findings_;
};

// By layout and encoding: buckets as frames or flush files, compressed tensors in a shard, or, for
// Encoding::kFull, whole tensors as frames or a shard (WeightStore::take_whole()).
[[nodiscard]] std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context);

// The same, on the device if there is one (may be null).
[[nodiscard]] Result<std::unique_ptr<RankPayload>> make_payload(PublisherDevice* device,
                                                                const PayloadContext& context);

// The files of each, made by make_rank_payload().
[[nodiscard]] std::unique_ptr<RankPayload> make_bucket_payload(const PayloadContext& context);
[[nodiscard]] std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context);
[[nodiscard]] std::unique_ptr<RankPayload> make_compact_payload(const PayloadContext& context);

// One bucket of a delta as part number `index` of this rank: a frame, or a flush file. The findings
// note a frame's table.
[[nodiscard]] Status write_bucket(const PayloadContext& context, const BucketView& bucket,
                                  std::uint32_t index, PayloadFindings& findings);
// Whole stretches of tensors as part number `index` of this rank: a full frame.
[[nodiscard]] Status write_full_frame(const PayloadContext& context, DType dtype,
                                      std::span<const DenseRun> runs, std::uint32_t index,
                                      PayloadFindings& findings);
// A frame that was encoded: as a part, or where the context says.
[[nodiscard]] Status put_frame(const PayloadContext& context, const std::string& name,
                               const std::vector<std::byte>& frame, PayloadFindings& findings);
// One whole part.
[[nodiscard]] Status put_part(SendRoad& road, const std::string& name,
                              std::span<const std::byte> bytes);
[[nodiscard]] Status put_part(PartRoad& road, const std::string& name,
                              std::span<const std::byte> bytes);

// BackgroundWriter: does one piece of work at a time on a thread of its own, while the caller makes
// the next one ready.
//
// One thread at a time calls it. The work and what it uses outlive the writer, whose destructor
// waits for what was begun.
class BackgroundWriter {
 public:
  using Work = std::function<Status()>;

  // Without a background every piece of work is done within the call that brings it. The clock may
  // be null.
  explicit BackgroundWriter(bool background, StageClock* clock = nullptr);

  [[nodiscard]] bool background() const { return background_; }
  // Waits until the work before has been done, and begins this. After a failure nothing more is
  // begun, and every call returns it.
  [[nodiscard]] Status hand_over(Work work);
  // Waits until everything has been done. How it went.
  [[nodiscard]] Status finish();

 private:
  bool background_;
  StageClock* clock_;
  Status status_;              // of what was done
  std::future<Status> begun_;  // its destructor waits for the work
};

}  // namespace driftless
