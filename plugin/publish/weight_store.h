// SPDX-License-Identifier: Apache-2.0
// WeightStore: one publisher rank's record of the weights that the receivers have, and of the
// changes since. Two kinds: a snapshot of the last version (snapshot_store.h), or the trainer's
// weights themselves, whose changes were captured as they were written (live_store.h).
#pragma once

#include <functional>
#include <map>

#include "kernels/tensor_ops.h"
#include "plugin/publish/block_splitter.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// A tensor, or block, that a source offers.
struct PairedTensor {
  std::uint32_t number = 0;  // in the store
  const std::byte* new_data = nullptr;
  MemoryKind memory = MemoryKind::kHost;  // where new_data lies
};

struct FoundChanges {
  std::uint64_t changed_units = 0;
  // By tensor of the layout. For a delta: the change of the digest of each changed tensor; for a
  // full version: the digest of each.
  std::map<std::uint32_t, Digest> digests;
  // Changed units by tensor of the layout, for a delta that was compared or captured on the host.
  std::map<std::uint32_t, std::uint64_t> units;
  bool dense = false;  // stopped: the version must be sent in full
};

// Tensors of a layout, or blocks of them, numbered. Several numbers may be blocks of one tensor.
// One thread at a time.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  [[nodiscard]] std::span<const OwnedTensor> owned() const { return owned_; }
  [[nodiscard]] const OwnedTensor& owned(std::uint32_t number) const { return owned_[number]; }
  [[nodiscard]] std::vector<std::uint32_t> owned_tensors() const;  // each once, ascending
  // The spec of the tensor that this block belongs to.
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
  // The WeightMemory that holds the store; for pinned memory the host's.
  [[nodiscard]] const std::shared_ptr<WeightMemory>& memory() const { return memory_; }
  [[nodiscard]] MemoryKind memory_kind() const { return memory_->kind(); }
  // All tensors, or the marked ones, as a source would offer them.
  [[nodiscard]] std::vector<PairedTensor> offer(const std::vector<bool>* tensors = nullptr) const;
  // Cuts the owned parts of these tensors, ascending; all other tensors are uncut afterwards.
  [[nodiscard]] Status recut(std::span<const BlockCut> cuts);
  // Overwrites a whole block; `from` may lie on either side.
  [[nodiscard]] Status write(std::uint32_t number, const std::byte* from);
  // The contribution of these units of a block to the tensor's digest. The block need not be owned.
  [[nodiscard]] Result<Digest> digest(const TensorSpec& tensor, const BlockPlace& place,
                                      const std::byte* units, MemoryKind kind) const;
  [[nodiscard]] Result<Digest> digest(const PairedTensor& units) const {
    return digest(spec(units.number), owned(units.number).place(), units.new_data, units.memory);
  }
  // For a full version: copies an offered tensor from host memory; this cannot be rolled back.
  // Returns the bytes in the store.
  [[nodiscard]] Result<std::span<const std::byte>> take_whole(const PairedTensor& offered,
                                                              FoundChanges& found);

  // By tensor of the layout: the digest of this store's part of each.
  [[nodiscard]] virtual Result<std::vector<Digest>> digests() const = 0;
  // Whether changes were captured. If not, the store is compared with the offered weights.
  [[nodiscard]] virtual bool captured() const = 0;
  // Passes the changes of these tensors since the last version, in order. The tensor of a delta is
  // its number in the store; one that is `lasting` stays valid until the version is committed or
  // rolled back. Also ok if it stopped because more than `dense_above_units` changed.
  using UseChange = std::function<Status(const DiffPiece&)>;
  [[nodiscard]] virtual Status each_change(std::span<const PairedTensor> batch,
                                           std::uint64_t dense_above_units, FoundChanges& found,
                                           const UseChange& use) = 0;
  // Whether a block is sent whole: its changes then have no old values (null).
  [[nodiscard]] virtual bool sent_whole(std::uint32_t /*number*/) const { return false; }
  // The version is committed.
  virtual void commit() = 0;
  // The version was not committed: restores the weights that the receivers have. Does nothing if
  // the store was not overwritten.
  virtual void roll_back() {}
  // Memory ran out: the next version is full, and nothing is rolled back.
  virtual void abandon() {}

 protected:
  // `owned` ascends by tensor. The layout and the device (may be null) outlive it.
  WeightStore(const WeightLayout& layout, std::vector<OwnedTensor> owned, PublisherDevice* device,
              std::shared_ptr<WeightMemory> memory, unsigned threads);
  void place(std::uint32_t number, std::byte* data) { data_[number] = data; }
  [[nodiscard]] PublisherDevice* device() const { return device_; }
  [[nodiscard]] unsigned threads() const { return threads_; }

 private:
  const WeightLayout* layout_;
  std::vector<OwnedTensor> owned_;
  std::vector<std::byte*> data_;  // of each
  PublisherDevice* device_;
  std::shared_ptr<WeightMemory> memory_;
  unsigned threads_;
};

}  // namespace driftless
