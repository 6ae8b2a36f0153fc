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
  // for publishers with a device (PublisherOptions::device).
  MemoryKind memory = MemoryKind::kHost;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The same on every call, for the life of the source.
  [[nodiscard]] virtual std::span<const TensorSpec> tensors() const = 0;
  // For each of tensors(), whose shapes are full: the box that is offered. The same on every call;
  // empty: all tensors are whole. The data of a box is a contiguous tensor of its
  // sizes. The blocks of all ranks together make up a tensor; if a rank holds several blocks of
  // one, each is an entry of tensors() with the same name.
  [[nodiscard]] virtual std::span<const TensorBox> boxes() const { return {}; }
  // Names of tensors that this rank holds, fully or in part, and does not offer: another rank must
  // offer each. The same on every call.
  [[nodiscard]] virtual std::span<const std::string> left_to_others() const { return {}; }
  // Publishers without a snapshot: whether this entry of tensors() is also written without
  // capture(). It is then compared with a copy at every publish(). The same on every call.
  [[nodiscard]] virtual bool watched(std::size_t /*tensor*/) const { return false; }
  // The directory of the checkpoint that holds these weights, or that they started from. Full
  // versions in layouts for other readers carry its other files. Empty: there is none.
  [[nodiscard]] virtual std::string companions_dir() const { return {}; }
  // Passes every tensor once (publish() refuses missing and repeated ones), in batches of the
  // source's choice; the data of a batch is valid until `use` returns. A second call must offer the
  // same bytes again: if a version turns out to be dense, it is sent in full from a second pass.
  [[nodiscard]] virtual Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) = 0;
};

// Stage `stage` of `stages`: contiguous stretches of the layout of about equal size, as pipeline
// stages have them.
struct LayoutStage {
  std::size_t first = 0, count = 0;
};
[[nodiscard]] LayoutStage stage_of(const WeightLayout& layout, unsigned stage, unsigned stages);

// Offers the tensors of a checkpoint, or of one stage of it. The checkpoint outlives the source.
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

// The most bytes that a tensor, or a block, takes in the frames of a full version.
[[nodiscard]] std::uint64_t framed_bytes(std::uint64_t tensor_bytes, std::string_view name);
// The most bytes that an anchor of these weights takes: their bytes, and what frames add.
[[nodiscard]] std::uint64_t anchor_room_bytes(const WeightSource& weights);

}  // namespace driftless
