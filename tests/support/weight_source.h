// SPDX-License-Identifier: Apache-2.0
// A WeightSource over weights in memory, all or a stretch of them, in batches.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plugin/publish/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {

// Memory of another kind with these bytes.
using PlaceBytes = std::function<std::shared_ptr<std::byte>(std::span<const std::byte>)>;

class MemorySource final : public WeightSource {
 public:
  // Offers two of three tensors from that memory.
  void lie_on_device(PlaceBytes place) { place_ = std::move(place); }
  // Offers its own memory, at the same places on every visit, as a trainer has its weights.
  void stay() { stays_ = true; }
  void watch(const std::string& name) { watched_.insert(name); }
  [[nodiscard]] bool watched(std::size_t tensor) const override {
    return watched_.contains(tensors_[tensor].name);
  }
  [[nodiscard]] std::vector<std::byte>& bytes(std::size_t tensor) { return bytes_[tensor]; }
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
    if (!place.ok()) {  // the publisher refuses it
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
      // A batch owns its memory, which is freed with it.
      std::vector<std::vector<std::byte>> held;
      std::vector<std::shared_ptr<std::byte>> placed;
      std::vector<OfferedTensor> offered;
      for (std::size_t i = at; i < std::min(at + batch_, tensors_.size()); ++i) {
        if (place_ && i % 3 != 2 && !bytes_[i].empty()) {
          placed.push_back(place_(bytes_[i]));
          offered.push_back({i, placed.back().get(), MemoryKind::kDevice});
          continue;
        }
        if (!stays_) held.push_back(bytes_[i]);
        offered.push_back({i, stays_ ? bytes_[i].data() : held.back().data()});
      }
      DRIFTLESS_RETURN_IF_ERROR(use(offered));
    }
    return {};
  }

 private:
  std::size_t batch_;
  bool stays_ = false;
  std::set<std::string> watched_;
  PlaceBytes place_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<std::vector<std::byte>> bytes_;
};

[[nodiscard]] inline TensorBox part_of(TensorBox box, std::size_t dim, std::uint64_t part,
                                       std::uint64_t parts) {
  const std::uint64_t all = box.sizes[dim], begin = all * part / parts;
  box.offsets[dim] += begin;
  box.sizes[dim] = all * (part + 1) / parts - begin;
  return box;
}

// Matrices, of which rank r of n has rows or columns; rank 0 has the other tensors. With several
// pieces a rank has every n-th range of rows, or of columns. The first matrix is cut by rows in its
// upper half, and by columns in its lower half.
[[nodiscard]] inline MemorySource in_blocks(const Weights& weights, unsigned rank, unsigned ranks,
                                            unsigned pieces = 1) {
  MemorySource source({}, 2);
  bool by_rows = false, first = true;
  for (const auto& [name, tensor] : weights) {
    if (tensor.shape.size() != 2 || tensor.bytes.empty()) {
      if (rank == 0) source.add(name, tensor);
      continue;
    }
    by_rows = !by_rows;
    const TensorBox all{{0, 0}, tensor.shape};
    const bool mixed = std::exchange(first, false) && pieces > 1;
    for (unsigned piece = pieces; piece-- > 0;) {
      const unsigned number = piece * ranks + rank, parts = pieces * ranks;
      if (!mixed) {
        source.add(name, tensor, part_of(all, by_rows ? 0 : 1, number, parts));
        continue;
      }
      source.add(name, tensor, part_of(part_of(all, 0, 0, 2), 0, number, parts));
      source.add(name, tensor, part_of(part_of(all, 0, 1, 2), 1, number, parts));
    }
  }
  return source;
}

}  // namespace driftless::testing
