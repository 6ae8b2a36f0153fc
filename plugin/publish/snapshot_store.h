// SPDX-License-Identifier: Apache-2.0
// SnapshotStore: a copy of this publisher rank's part of the last version, with an undo log that
// takes back a version that was not committed.
#pragma once

#include <deque>
#include <mutex>

#include "plugin/publish/weight_store.h"

namespace driftless {

// The old values of the changes that a version made to a snapshot. Memory: O(changed), and no more
// than the snapshot. apply() may be called from several threads for disjoint places. Memory is kept
// for the next version, unless it is much more than this one needed.
class UndoLog {
 public:
  // Saves the old values of `delta`, then writes the new ones into `data`, the block that lies at
  // `place` in the tensor of `key`. `delta.tensor` is the block's number in the snapshot;
  // `old_values` has one value for each unit of the delta. Returns what the changes add to the
  // tensor's digest. kNoSpace: there was no memory, and nothing was changed.
  [[nodiscard]] Result<Digest> apply(const HostKernels& kernels, const DigestTensorKey& key,
                                     const BlockPlace& place, std::byte* data,
                                     const DeltaView& delta, const std::byte* old_values);
  void roll_back(const HostKernels& kernels, const WeightStore& snapshot);
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
  // Saves the old values of `delta`. `units` is the memory at the delta's origin. False: no memory,
  // and the piece is empty.
  [[nodiscard]] static bool keep(Piece& piece, const DeltaView& delta, const std::byte* units,
                                 const std::byte* old_values);

  std::mutex mutex_;          // guards the next two
  std::deque<Piece> pieces_;  // the first `used_` count
  std::size_t used_ = 0;
};

// All blocks lie in one allocation; each begins at a multiple of 64 bytes.
class SnapshotStore final : public WeightStore {
 public:
  // Zeroed. kNoSpace if there is no memory. The memory is the device's, or host memory if `device`
  // is null.
  [[nodiscard]] static Result<std::unique_ptr<SnapshotStore>> create(
      const WeightLayout& layout, std::vector<OwnedTensor> owned, unsigned threads,
      PublisherDevice* device = nullptr);

  [[nodiscard]] Result<std::vector<Digest>> digests() const override;
  [[nodiscard]] bool captured() const override { return false; }
  // Compares with the offered weights, in host memory, and takes over the changes.
  [[nodiscard]] Status each_change(std::span<const PairedTensor> batch,
                                   std::uint64_t dense_above_units, FoundChanges& found,
                                   const UseChange& use) override;
  void commit() override { undo_.clear(); }
  void roll_back() override;
  void abandon() override { undo_.clear(); }

 private:
  using WeightStore::WeightStore;
  [[nodiscard]] Status absorb(const DiffPiece& piece, std::uint64_t dense_above_units,
                              FoundChanges& found);

  std::shared_ptr<std::byte> slab_;  // holds all blocks
  UndoLog undo_;
  std::mutex mutex_;  // guards the findings while pieces are compared
};

}  // namespace driftless
