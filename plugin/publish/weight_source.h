// SPDX-License-Identifier: Apache-2.0
// WeightSource: the current weights of one publisher rank, offered batch by batch.
#pragma once

#include <functional>

#include "core/block.h"
#include "formats/checkpoint.h"

namespace driftless {

struct OfferedTensor {
  std::size_t tensor = 0;  // index in tensors()
  const std::byte* data = nullptr;
  // kDevice: ready to be read by work that is queued from now on, on any stream of that GPU. Only
  // for publishers with a device side (PublisherOptions::device).
  MemoryKind memory = MemoryKind::kHost;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The same on every call, for the life of the source.
  [[nodiscard]] virtual std::span<const TensorSpec> tensors() const = 0;
  // Which part of each of tensors() is offered, with their full shape there: as many boxes, the
  // same on every call; empty: all are whole. The data of a box lies as a contiguous tensor of its
  // sizes. Blocks of all ranks make up a tensor; of one that a rank holds in several, each is an
  // entry of tensors() with the same name.
  [[nodiscard]] virtual std::span<const TensorBox> boxes() const { return {}; }
  // Names of tensors that this rank holds, or a part of them, and leaves to others: one of them
  // must offer each. The same on every call.
  [[nodiscard]] virtual std::span<const std::string> left_to_others() const { return {}; }
  // Of a publisher without a snapshot: whether others than capture() write this entry of tensors().
  // It is compared with a copy of its own at every publish(). The same on every call.
  [[nodiscard]] virtual bool watched(std::size_t /*tensor*/) const { return false; }
  // The directory of the checkpoint that these weights are, or started from: whole versions in
  // layouts that others read carry its other files. Empty: there is none.
  [[nodiscard]] virtual std::string companions_dir() const { return {}; }
  // Passes every tensor once (publish() refuses what is left out or comes twice), in batches of the
  // source's choice; the data of a batch is valid until `use` returns. May be called again, and
  // then offers the same bytes again: a version that turns out to be dense is sent in full from a
  // second pass.
  [[nodiscard]] virtual Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) = 0;
};

// The tensors of stage `stage` of `stages`: contiguous stretches of the layout of about equal size,
// as pipeline stages have them.
struct LayoutStage {
  std::size_t first = 0, count = 0;
};
[[nodiscard]] LayoutStage stage_of(const WeightLayout& layout, unsigned stage, unsigned stages);

// Tensors of a checkpoint: those of a stage. The checkpoint outlives the source.
class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint, unsigned stage = 0, unsigned stages = 1);
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::string companions_dir() const override { return checkpoint_->directory(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

 private:
  const Checkpoint* checkpoint_;
  std::vector<TensorSpec> tensors_;
  std::size_t first_ = 0;  // in the checkpoint's layout
};

// A tensor's bytes, or a block's, in the frames of a full version, at most.
[[nodiscard]] std::uint64_t framed_bytes(std::uint64_t tensor_bytes, std::string_view name);
// Room for an anchor of what it offers: its bytes, and what frames add to them.
[[nodiscard]] std::uint64_t anchor_room_bytes(const WeightSource& weights);

}  // namespace driftless
