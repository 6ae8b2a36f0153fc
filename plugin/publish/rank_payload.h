// SPDX-License-Identifier: Apache-2.0
// RankPayload: what one publisher rank contributes to one publication, made from the weights as
// they are offered and written as parts onto the road, while the snapshot moves on with it.
#pragma once

#include <array>
#include <functional>
#include <future>

#include "collectives/road.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/checksum.h"
#include "kernels/tensor_ops.h"
#include "plugin/publish/snapshot.h"

namespace driftless {

// Memory that is kept from version to version: touching new pages for each would cost as much as
// the work itself.
struct PayloadBuffers {
  PayloadBuffers(const WeightLayout& layout, Encoding encoding)
      : buckets{BucketBuilder(layout, encoding), BucketBuilder(layout, encoding)} {}
  std::array<BucketBuilder, 2> buckets;
  std::vector<std::byte> encoded;  // one bucket, as it goes onto the road
};

// What a payload is made with. Everything pointed to outlives it.
struct PayloadContext {
  const WeightLayout* layout = nullptr;
  Snapshot* snapshot = nullptr;
  UndoLog* undo = nullptr;
  PayloadBuffers* buffers = nullptr;
  SendRoad* road = nullptr;
  FrameContext frame;  // run, version, base, layout, encoding, rank
  DirectoryLayout directory_layout = DirectoryLayout::kFrames;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::uint64_t buffer_bytes = 0;
  unsigned ranks = 1;
  unsigned threads = 1;
  bool background = true;                               // encode and write on a thread of its own
  std::uint64_t dense_above_units = ~std::uint64_t{0};  // more changed than this: stop, it is dense
};

struct PayloadFindings {
  std::uint64_t changed_units = 0;
  std::uint64_t changed_tensors = 0;
  std::uint64_t delta_bytes = 0;  // encoded, without container
  Digest digest_change;           // of a delta: what it adds to the digest of this rank's weights
  Digest digest;                  // of a full version: the digest of this rank's weights
  std::vector<ManifestTensor> tensors;  // checksums, where the layout has them; in order of names
  std::string shard;                    // hf_delta: the file that holds this rank's tensors
  bool dense = false;                   // stopped: the version is to be sent in full
};

struct PairedTensor {
  std::uint32_t tensor = 0;  // in the layout; owned by this rank
  const std::byte* new_data = nullptr;
  MemoryKind memory = MemoryKind::kHost;  // where that lies
};

// Calls come from one thread. After a failure only the destructor may be called; the undo log then
// holds what is to be rolled back.
class RankPayload {
 public:
  virtual ~RankPayload() = default;
  // Each owned tensor once, in batches; a batch's data is not needed after the call.
  [[nodiscard]] virtual Status add(std::span<const PairedTensor> batch) = 0;
  // All parts are on the road.
  [[nodiscard]] virtual Status finish() = 0;
  [[nodiscard]] const PayloadFindings& findings() const { return findings_; }

 protected:
  PayloadFindings findings_;
};

// What payloads that are made on the host share.
class HostPayload : public RankPayload {
 protected:
  explicit HostPayload(const PayloadContext& context) : context_(context) {}
  // Compares the batch with the snapshot, which takes what changed. `collect` sees the changes in
  // order. Ok also if the comparison was stopped because the version is dense.
  [[nodiscard]] Status compare(std::span<const PairedTensor> batch,
                               const std::function<Status(const DiffPiece&)>& collect);
  // The snapshot takes the whole tensor. Its bytes there.
  [[nodiscard]] std::span<const std::byte> take_whole(const PairedTensor& offered);

  PayloadContext context_;

 private:
  [[nodiscard]] Status absorb(const DiffPiece& piece);

  std::mutex mutex_;  // for the findings while pieces are compared
};

// By layout and encoding: buckets as frames or flush files, compressed tensors in a shard, or, for
// Encoding::kFull, whole tensors as frames or a shard. A full payload writes the offered bytes into
// the snapshot without an undo log.
[[nodiscard]] std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context);

// The files of each, made by make_rank_payload().
[[nodiscard]] std::unique_ptr<RankPayload> make_bucket_payload(const PayloadContext& context);
[[nodiscard]] std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context);

// One bucket of a delta as part number `index` of this rank: a frame, or a flush file.
[[nodiscard]] Status write_bucket(const PayloadContext& context, const BucketView& bucket,
                                  std::uint32_t index);
// Whole stretches of tensors as part number `index` of this rank: a full frame.
[[nodiscard]] Status write_full_frame(const PayloadContext& context, DType dtype,
                                      std::span<const DenseRun> runs, std::uint32_t index);
// One whole part.
[[nodiscard]] Status put_part(SendRoad& road, const std::string& name,
                              std::span<const std::byte> bytes);

// BackgroundWriter: does one piece of work at a time on a thread of its own, while the caller makes
// the next one ready.
//
// One thread at a time calls it. The work and what it uses outlive the writer, whose destructor
// waits for what was begun.
class BackgroundWriter {
 public:
  using Work = std::function<Status()>;

  // Without a background every piece of work is done within the call that brings it.
  explicit BackgroundWriter(bool background);

  [[nodiscard]] bool background() const { return background_; }
  // Waits until the work before has been done, and begins this. After a failure nothing more is
  // begun, and every call returns it.
  [[nodiscard]] Status hand_over(Work work);
  // Waits until everything has been done. How it went.
  [[nodiscard]] Status finish();

 private:
  bool background_;
  Status status_;              // of what was done
  std::future<Status> begun_;  // its destructor waits for the work
};

}  // namespace driftless
