// SPDX-License-Identifier: Apache-2.0
// BlockMirror: for layouts of whole tensors, if ranks offer blocks. Every rank finds what changed
// in its blocks, the leader gathers that, keeps the whole tensors in host memory, and writes them
// as one more rank would. Gathered are the changes; once, at the start, the blocks.
#pragma once

#include "plugin/publish/rank_messages.h"
#include "plugin/publish/snapshot_store.h"

namespace driftless {

// The group, the run's layout and the device outlive it.
class BlockMirror {
 public:
  // Of the tensors that the ranks offer in blocks.
  [[nodiscard]] static Result<std::unique_ptr<BlockMirror>> open(Group& group, const RunState& run,
                                                                 unsigned threads);

  using Frames = std::vector<std::vector<std::byte>>;
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }  // on the leader
  [[nodiscard]] std::size_t tensors() const { return tensors_; }
  // The payload of a rank's blocks: frames for the leader, which go into `frames`.
  [[nodiscard]] PayloadContext block_context(const PayloadContext& made, Frames& frames);
  // Collective: the blocks of all ranks, once. If a rank is not ready, fails on all.
  [[nodiscard]] Status seed(Status ready, const Frames& frames, const Deadline& deadline);
  // Collective, whatever went before: the frames of `blocks` (null: that failed), gathered and
  // written by the leader. What the payload found is added to `mine`. If a rank failed, or found
  // too many changes, nothing is written.
  void write(const PayloadContext& made, RankPayload* blocks, const Frames& frames,
             const Deadline& deadline, PayloadMessage& mine);
  void commit();
  void roll_back();

 private:
  explicit BlockMirror(Group& group, const RunState& run)
      : group_(group), layout_(run.layout), block_buffers_(run.layout, Encoding::kDeltas) {}
  [[nodiscard]] Result<std::vector<std::string>> gather(Status ready, const std::string& mine,
                                                        const Deadline& deadline);
  // Leader: the tensors that the frames change, written from the mirror, which moves on.
  [[nodiscard]] Status write_whole(const PayloadContext& made,
                                   const std::vector<std::string>& messages,
                                   PayloadFindings& findings);

  Group& group_;
  const WeightLayout& layout_;
  std::uint64_t size_bytes_ = 0;
  std::size_t tensors_ = 0;
  PayloadBuffers block_buffers_;
  // The leader's.
  std::optional<PayloadBuffers> whole_buffers_;
  std::unique_ptr<SnapshotStore> whole_;
};

}  // namespace driftless
