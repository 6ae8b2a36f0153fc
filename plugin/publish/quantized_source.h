// SPDX-License-Identifier: Apache-2.0
// QuantizedSource: a bfloat16 checkpoint offered as the tensors of a base with FP8 blocks or INT4.
#pragma once

#include "plugin/checkpoint/quantization.h"
#include "plugin/publish/weight_source.h"

namespace driftless {

// Tensors whose scales the base has are quantized during visit(), some at a time; the others are
// offered as the checkpoint has them. Stages are those of a CheckpointSource over the base. The
// checkpoint outlives the source.
class QuantizedSource final : public WeightSource {
 public:
  // `companions_dir`: the base's directory. kWrongLayout, by name, unless the checkpoint has
  // exactly the tensors of `base`: without the scales, and tensors with scales in bfloat16.
  [[nodiscard]] static Result<QuantizedSource> make(const Checkpoint& weights,
                                                    const WeightLayout& base,
                                                    std::string companions_dir,
                                                    const QuantizedAs& as, unsigned threads,
                                                    unsigned stage = 0, unsigned stages = 1);
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::string companions_dir() const override { return companions_dir_; }
  // Holds kBatchBytes of codes and scales, or those of one tensor if they are larger.
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

  static constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;

 private:
  // A tensor of the checkpoint, and the tensors that are made from it.
  struct Part {
    std::size_t from = 0;
    std::optional<std::size_t> same, codes, scales, shape;  // indices in tensors()
  };

  explicit QuantizedSource(const Checkpoint& weights) : weights_(&weights) {}
  [[nodiscard]] Status add(const WeightLayout& base, const TensorSpec& tensor, std::size_t from);
  [[nodiscard]] Status add_groups(const WeightLayout& base, const TensorSpec& tensor,
                                  std::uint32_t packed, std::size_t from);
  // The index in tensors(), if the tensor is of this stage.
  [[nodiscard]] std::optional<std::size_t> number(std::size_t tensor) const;

  const Checkpoint* weights_;
  std::string companions_dir_;
  QuantizedAs as_;
  unsigned threads_ = 1;
  LayoutStage stage_;
  std::vector<TensorSpec> tensors_;
  std::vector<Part> parts_;
};

// The digest of all tensors of a source that offers whole tensors in host memory.
[[nodiscard]] Result<Digest> digest_source(WeightSource& source, unsigned threads);

}  // namespace driftless
