// SPDX-License-Identifier: Apache-2.0
// BlockMirror: publishes layouts of whole tensors if ranks offer blocks. Every rank compares its
// blocks and sends the changes to the leader. The leader keeps the whole tensors in host memory,
// applies the changes, and writes the tensors as one more rank would. The blocks themselves are
// gathered once, at the start.
#pragma once

#include "plugin/publish/rank_messages.h"
#include "plugin/publish/snapshot_store.h"

namespace driftless {

// The group, the run's layout and the device outlive the mirror.
class BlockMirror {
 public:
  // The mirror holds the tensors that the ranks offer in blocks.
  [[nodiscard]] static Result<std::unique_ptr<BlockMirror>> open(Group& group, const RunState& run,
                                                                 unsigned threads);

  using Frames = std::vector<std::vector<std::byte>>;
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }  // on the leader
  [[nodiscard]] std::size_t tensors() const { return tensors_; }
  // A copy of a rank's context for the payload of its blocks: their frames are appended to
  // `frames`, which go to the leader.
  [[nodiscard]] PayloadContext block_context(const PayloadContext& made, Frames& frames);
  // Collective, once: gathers the blocks of all ranks. Fails on all ranks if one is not ready.
  [[nodiscard]] Status seed(Status ready, const Frames& frames, const Deadline& deadline);
  // Collective, also after a failure: gathers the frames of `blocks` (null: the rank failed to make
  // them), and the leader writes them. Adds the payload's findings to `mine`. Writes nothing if a
  // rank failed or found too many changes.
  void write(const PayloadContext& made, RankPayload* blocks, const Frames& frames,
             const Deadline& deadline, PayloadMessage& mine);
  void commit();
  void roll_back();

 private:
  explicit BlockMirror(Group& group, const RunState& run)
      : group_(group), layout_(run.layout), block_buffers_(run.layout, Encoding::kDeltas) {}
  [[nodiscard]] Result<std::vector<std::string>> gather(Status ready, const std::string& mine,
                                                        const Deadline& deadline);
  // Leader: applies the frames to the mirror and writes the tensors that they change.
  [[nodiscard]] Status write_whole(const PayloadContext& made,
                                   const std::vector<std::string>& messages,
                                   PayloadFindings& findings);

  Group& group_;
  const WeightLayout& layout_;
  std::uint64_t size_bytes_ = 0;
  std::size_t tensors_ = 0;
  PayloadBuffers block_buffers_;
  // On the leader only.
  std::optional<PayloadBuffers> whole_buffers_;
  std::unique_ptr<SnapshotStore> whole_;
};

}  // namespace driftless
