// SPDX-License-Identifier: Apache-2.0
// ChangeCapture: compares new values with the weights just before they are written, and keeps the
// changes until a version takes them.
#pragma once

#include "core/dtype.h"
#include "plugin/publish/change_store.h"
#include "plugin/publish/weight_store.h"

namespace driftless {

// The error for a tensor whose address changed.
[[nodiscard]] Status moved_error(std::string_view tensor);

// The new values of one block, for capture().
struct NewValues {
  std::uint32_t number = 0;  // in the store
  const std::byte* data = nullptr;
  ValueCast cast = ValueCast::kNone;
  MemoryKind memory = MemoryKind::kHost;
};

// Where a block lies, and whether it is compared with a copy ("watched").
struct LivePlace {
  const std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;
  bool watched = false;
};

// One thread at a time.
class ChangeCapture {
 public:
  // `weights` has the blocks, and the copies of the watched ones. It and the device (may be null)
  // outlive this.
  ChangeCapture(WeightStore& weights, PublisherDevice* device, std::uint64_t limit_bytes,
                unsigned threads);

  // A second, empty store for the same blocks, with the same limit.
  [[nodiscard]] ChangeStore empty_store() const;
  void open(std::vector<LivePlace> places) { places_ = std::move(places); }
  [[nodiscard]] const std::vector<LivePlace>& places() const { return places_; }
  // Ok if the block still lies at its place.
  [[nodiscard]] Status check(std::uint32_t number, const std::byte* data) const;
  // `stream`: the stream on which weights on a GPU are written (PublisherDevice::capture()).
  [[nodiscard]] Status capture(std::span<const NewValues> blocks, void* stream);
  // Captures the changes of the watched blocks, and updates their copies.
  [[nodiscard]] Status watch(void* stream);
  // Copies the changes that were captured on a GPU to the host. Not ok: changes may be missing.
  [[nodiscard]] Status fetch();
  [[nodiscard]] ChangeStore& fresh() { return fresh_; }
  [[nodiscard]] const ChangeStore& fresh() const { return fresh_; }

 private:
  [[nodiscard]] bool on_gpu() const { return weights_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] Status compare(std::span<const TensorPair> pairs, void* stream);
  // Whether `values` has bits that are known only once they are written.
  [[nodiscard]] bool unknown_bits(std::uint32_t number, std::span<const std::byte> values) const;

  WeightStore& weights_;
  PublisherDevice* device_;
  std::uint64_t limit_bytes_ = 0;
  unsigned threads_;
  std::vector<LivePlace> places_;
  ChangeStore fresh_;
  std::vector<bool> rounded_;  // by block: whether capture() rounded values
};

}  // namespace driftless
