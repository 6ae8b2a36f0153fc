// SPDX-License-Identifier: Apache-2.0
// RankPayload: what one publisher rank contributes to one publication, made from the weights as
// they are offered and written as parts onto the road, while the snapshot moves on with it.
#pragma once

#include <deque>
#include <future>
#include <map>
#include <mutex>

#include "collectives/road.h"
#include "kernels/tensor_ops.h"
#include "plugin/publish/block_splitter.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

class LiveWeights;

// Snapshot: what the receivers have, as far as this publisher rank owns it; and the undo log that
// takes a version back which did not come through.

// The bytes of some tensors of a layout, or of blocks of them, in one stretch of memory of its own.
// They begin at multiples of 64 bytes. What is owned is numbered; a tensor may be there in several
// blocks.
class Snapshot {
 public:
  // Zeroed, for what is owned, ascending by tensor. kNoSpace if there is no memory. With `device`
  // it lies where that says. The layout and the device outlive it.
  [[nodiscard]] static Result<Snapshot> create(const WeightLayout& layout,
                                               std::vector<OwnedTensor> owned,
                                               PublisherDevice* device = nullptr);

  // No memory of its own: place() says where each lies, in memory of the device if there is one.
  [[nodiscard]] static Snapshot without_memory(const WeightLayout& layout,
                                               std::vector<OwnedTensor> owned,
                                               PublisherDevice* device);
  void place(std::uint32_t number, std::byte* data) { data_[number] = data; }

  [[nodiscard]] std::span<const OwnedTensor> owned() const { return owned_; }
  [[nodiscard]] const OwnedTensor& owned(std::uint32_t number) const { return owned_[number]; }
  // The tensor's, of which this number is a block.
  [[nodiscard]] const TensorSpec& spec(std::uint32_t number) const {
    return (*layout_)[owned_[number].tensor()];
  }
  [[nodiscard]] const WeightLayout& layout() const { return *layout_; }
  [[nodiscard]] std::byte* data(std::uint32_t number) const { return data_[number]; }
  [[nodiscard]] std::span<const std::byte> bytes(std::uint32_t number) const {
    return {data_[number], size_bytes(number)};
  }
  [[nodiscard]] std::uint64_t size_bytes(std::uint32_t number) const {
    return owned_[number].place().units * unit_bytes(spec(number).dtype);
  }
  // Where it lies; of pinned memory the host's.
  [[nodiscard]] const std::shared_ptr<WeightMemory>& memory() const { return memory_; }
  [[nodiscard]] MemoryKind memory_kind() const { return memory_->kind(); }
  // Of these tensors alone, ascending, is cut what is owned of them.
  [[nodiscard]] Status recut(std::span<const BlockCut> cuts);
  // All of it; `from` may lie on either side.
  [[nodiscard]] Status write(std::uint32_t number, const std::byte* from);
  // What its units add to the tensor's digest; or others for them, that lie elsewhere.
  [[nodiscard]] Result<Digest> digest(std::uint32_t number, unsigned threads) const {
    return digest(number, data_[number], memory_kind(), threads);
  }
  [[nodiscard]] Result<Digest> digest(std::uint32_t number, const std::byte* units, MemoryKind kind,
                                      unsigned threads) const;
  // The same of a block that need not be owned.
  [[nodiscard]] Result<Digest> digest(const TensorSpec& tensor, const BlockPlace& place,
                                      const std::byte* units, MemoryKind kind,
                                      unsigned threads) const;

 private:
  const WeightLayout* layout_ = nullptr;
  std::vector<OwnedTensor> owned_;
  std::vector<std::byte*> data_;  // of each
  PublisherDevice* device_ = nullptr;
  std::shared_ptr<WeightMemory> memory_;
  std::shared_ptr<std::byte> slab_;  // of all tensors
};

// The old values of what a version changed in a snapshot. O(changed), and no more than the snapshot
// itself has. apply() may be called from several threads for disjoint places. Memory is kept for
// the next version, unless it is much more than this one needed.
class UndoLog {
 public:
  // Keeps the old values of `delta` in `data`, then writes the new ones over them. Returns what
  // this changes in the digest of the tensor that `key` stands for, of which `data` is the block at
  // `place`. Its number in the snapshot is the delta's tensor. `old_values` are those of the
  // delta's units. kNoSpace: no memory, and nothing was changed.
  [[nodiscard]] Result<Digest> apply(const HostKernels& kernels, const DigestTensorKey& key,
                                     const BlockPlace& place, std::byte* data,
                                     const DeltaView& delta, const std::byte* old_values);
  void roll_back(const HostKernels& kernels, Snapshot& snapshot);
  void clear();

 private:
  struct Piece {
    std::uint32_t number = 0;  // in the snapshot
    unsigned unit_bytes = 1;
    std::uint64_t origin = 0;
    std::uint64_t count = 0;
    bool dense = false;
    ByteBuffer memory;  // `count` offsets, then as many old values; dense: `count` adjoining units
  };
  [[nodiscard]] Piece& next_piece();
  // Keeps what `delta` changes in `units`, which lie at its origin. False: no memory, and the piece
  // is empty.
  [[nodiscard]] static bool keep(Piece& piece, const DeltaView& delta, const std::byte* units,
                                 const std::byte* old_values);

  std::mutex mutex_;          // for the next two
  std::deque<Piece> pieces_;  // the first `used_` count
  std::size_t used_ = 0;
};

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
  // Frames go here and not onto the road, if it is set.
  std::vector<std::vector<std::byte>>* frames = nullptr;
  Snapshot* snapshot = nullptr;
  UndoLog* undo = nullptr;
  // What changed, if that was captured; the snapshot is the weights themselves then. Null: it is
  // compared with what is offered.
  const LiveWeights* live = nullptr;
  PayloadBuffers* buffers = nullptr;
  SendRoad* road = nullptr;
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

struct PayloadFindings {
  std::uint64_t changed_units = 0;
  std::uint64_t delta_bytes = 0;  // encoded, without container
  // By the number in the layout. Of a delta: what it adds to the digest of each tensor that it
  // changes; of a full version: the digest of each.
  std::map<std::uint32_t, Digest> digests;
  std::vector<ManifestTensor> tensors;    // checksums, where the layout has them; in order of names
  std::map<std::string, Hash128> tables;  // of frames in host memory: frame_table_hash(), by name
  std::string shard;                      // hf_delta: the file that holds this rank's tensors
  // Of whole tensors that were put together from blocks: the leader's.
  std::vector<ManifestTensor> mirror_tensors;
  std::string mirror_shard;
  bool dense = false;  // stopped: the version is to be sent in full
};

struct PairedTensor {
  std::uint32_t number = 0;  // in the snapshot
  const std::byte* new_data = nullptr;
  MemoryKind memory = MemoryKind::kHost;  // where that lies
};

// Calls come from one thread. After a failure only the destructor may be called; the undo log then
// holds what is to be rolled back.
class RankPayload {
 public:
  virtual ~RankPayload() = default;
  // Each number of the snapshot once, in batches; a batch's data is not needed after the call.
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
  // Compares the batch with the snapshot, which takes what changed; or looks up what was captured
  // of it. `collect` sees the changes in order; the tensor of a delta is the number in the
  // snapshot. Ok also if that was stopped because the version is dense.
  [[nodiscard]] Status compare(std::span<const PairedTensor> batch,
                               const std::function<Status(const DiffPiece&)>& collect);
  // The snapshot takes all of it. Its bytes there.
  [[nodiscard]] Result<std::span<const std::byte>> take_whole(const PairedTensor& offered);

  PayloadContext context_;

 private:
  [[nodiscard]] Status absorb(const DiffPiece& piece);
  [[nodiscard]] Status look_up(std::span<const PairedTensor> batch,
                               const std::function<Status(const DiffPiece&)>& collect);

  std::mutex mutex_;  // for the findings while pieces are compared
};

// By layout and encoding: buckets as frames or flush files, compressed tensors in a shard, or, for
// Encoding::kFull, whole tensors as frames or a shard. A full payload writes the offered bytes into
// the snapshot without an undo log.
[[nodiscard]] std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context);

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
