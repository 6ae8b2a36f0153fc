// SPDX-License-Identifier: Apache-2.0
// A WeightSource over weights in memory, all or a stretch of them, in batches.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "plugin/publish/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {

class MemorySource final : public WeightSource {
 public:
  explicit MemorySource(const Weights& weights, std::size_t batch = 3) : batch_(batch) {
    for (const auto& [name, tensor] : weights) add(name, tensor);
  }
  // Those of `stage` of `stages`: every stages-th tensor.
  MemorySource(const Weights& weights, std::size_t stage, std::size_t stages, std::size_t batch)
      : batch_(batch) {
    std::size_t next = 0;
    for (const auto& [name, tensor] : weights) {
      if (next++ % stages == stage) add(name, tensor);
    }
  }

  // All of it, or the box of it.
  void add(const std::string& name, const TestTensor& tensor, const TensorBox& box = {}) {
    tensors_.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
    boxes_.push_back(box);
    const auto place = place_of(tensors_.back(), box);
    if (!place.ok()) {  // for who refuses it
      bytes_.push_back(tensor.bytes);
      return;
    }
    const unsigned unit = unit_bytes(tensor.dtype);
    std::vector<std::byte>& bytes = bytes_.emplace_back();
    for (std::uint64_t i = 0; i < place->units; ++i) {
      const auto at = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(place->at(i) * unit);
      bytes.insert(bytes.end(), at, at + unit);
    }
  }

  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    for (std::size_t at = 0; at < tensors_.size(); at += batch_) {
      // The memory of a batch is its own, and goes with it.
      std::vector<std::vector<std::byte>> held;
      std::vector<OfferedTensor> offered;
      for (std::size_t i = at; i < std::min(at + batch_, tensors_.size()); ++i) {
        held.push_back(bytes_[i]);
        offered.push_back({i, held.back().data()});
      }
      DRIFTLESS_RETURN_IF_ERROR(use(offered));
    }
    return {};
  }

 private:
  std::size_t batch_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace driftless::testing
