// SPDX-License-Identifier: Apache-2.0
// ChangeCapture: compares new values with the weights just before those are written, and keeps what
// changes until a version takes it.
#pragma once

#include "core/dtype.h"
#include "plugin/publish/change_store.h"
#include "plugin/publish/weight_store.h"

namespace driftless {

// A tensor does not lie where it lay.
[[nodiscard]] Status moved_error(std::string_view tensor);

// What capture() compares a block with.
struct NewValues {
  std::uint32_t number = 0;  // in the store
  const std::byte* data = nullptr;
  ValueCast cast = ValueCast::kNone;
  MemoryKind memory = MemoryKind::kHost;
};

// Where a block lies, and whether it is compared with a copy of its own.
struct LivePlace {
  const std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;
  bool watched = false;
};

// One thread at a time.
class ChangeCapture {
 public:
  // `weights` has the blocks, and the copies of those that are watched. It and the device (may be
  // null) outlive this.
  ChangeCapture(WeightStore& weights, PublisherDevice* device, std::uint64_t limit_bytes,
                unsigned threads);

  // Another store for the same blocks, with the same limit.
  [[nodiscard]] ChangeStore empty_store() const;
  void open(std::vector<LivePlace> places) { places_ = std::move(places); }
  [[nodiscard]] const std::vector<LivePlace>& places() const { return places_; }
  // Ok if a block lies where it lay.
  [[nodiscard]] Status check(std::uint32_t number, const std::byte* data) const;
  // `stream`: what weights on a GPU are written on (PublisherDevice::capture()).
  [[nodiscard]] Status capture(std::span<const NewValues> blocks, void* stream);
  // What is watched: the copies are then what it is now.
  [[nodiscard]] Status watch(void* stream);
  // Brings over what was captured on a GPU. Not ok: changes may be missing.
  [[nodiscard]] Status fetch();
  [[nodiscard]] ChangeStore& fresh() { return fresh_; }
  [[nodiscard]] const ChangeStore& fresh() const { return fresh_; }

 private:
  [[nodiscard]] bool on_gpu() const { return weights_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] Status compare(std::span<const TensorPair> pairs, void* stream);
  // Changes with a value that nobody can tell before it is written.
  [[nodiscard]] bool unknown_bits(std::uint32_t number, std::span<const std::byte> values) const;

  WeightStore& weights_;
  PublisherDevice* device_;
  std::uint64_t limit_bytes_ = 0;
  unsigned threads_;
  std::vector<LivePlace> places_;
  ChangeStore fresh_;
  std::vector<bool> rounded_;  // of each block: capture() rounded values of it
};

}  // namespace driftless
