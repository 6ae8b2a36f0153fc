// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_payload.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::string_view to_string(SnapshotPlace place) {
  switch (place) {
    case SnapshotPlace::kPinned: return "pinned";
    case SnapshotPlace::kDevice: return "device";
    default: return "host";
  }
}

Result<Snapshot> Snapshot::create(const WeightLayout& layout, std::vector<std::uint32_t> tensors,
                                  PublisherDevice* device) {
  Snapshot snapshot;
  snapshot.layout_ = &layout;
  snapshot.tensors_ = std::move(tensors);
  snapshot.data_.resize(layout.size());
  std::uint64_t bytes = 0;
  for (const std::uint32_t tensor : snapshot.tensors_) bytes += aligned(layout[tensor].size_bytes);
  bytes = std::max(bytes, kAlignment);
  const bool on_device = device != nullptr && device->on_device();
  snapshot.device_ = device;
  snapshot.memory_ = on_device ? device->memory() : make_host_memory();
  DRIFTLESS_ASSIGN_OR_RETURN(snapshot.slab_, device != nullptr ? device->allocate(bytes)
                                                               : snapshot.memory_->allocate(bytes));
  std::byte* at = snapshot.slab_.get();
  for (const std::uint32_t tensor : snapshot.tensors_) {
    snapshot.data_[tensor] = at;
    at += aligned(layout[tensor].size_bytes);
  }
  return snapshot;
}

Status Snapshot::write(std::uint32_t tensor, const std::byte* from) {
  const std::uint64_t bytes = (*layout_)[tensor].size_bytes;
  if (device_ != nullptr) return device_->copy(data_[tensor], from, bytes);
  std::copy_n(from, bytes, data_[tensor]);
  return {};
}

Result<std::vector<Digest>> Snapshot::digests(unsigned threads) const {
  std::vector<Digest> digests;
  for (const std::uint32_t tensor : tensors_) {
    const DigestTensorKey key = digest_tensor_key((*layout_)[tensor].name);
    const TensorBytes all{{0, bytes(tensor), memory_kind()}, &key};
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, memory_->digest(std::span(&all, 1), threads));
    digests.push_back(digest);
  }
  return digests;
}

UndoLog::Piece& UndoLog::next_piece() {
  const std::scoped_lock lock(mutex_);
  if (used_ == pieces_.size()) pieces_.emplace_back();
  return pieces_[used_++];
}

std::byte* UndoLog::start(Piece& piece, const DeltaView& delta) {
  piece.tensor = delta.tensor;
  piece.unit_bytes = delta.unit_bytes;
  piece.origin = delta.origin;
  piece.count = 0;
  piece.memory.shrink(0);
  std::byte* const memory =
      piece.memory.extend(delta.count() * (sizeof(std::uint32_t) + delta.unit_bytes));
  if (memory != nullptr) piece.count = delta.count();
  return memory;
}

Result<Digest> UndoLog::apply(const HostKernels& kernels, const DigestTensorKey& key,
                              std::byte* tensor_data, const DeltaView& delta,
                              const std::byte* old_values) {
  std::byte* const memory = start(next_piece(), delta);
  if (memory == nullptr) {
    return error(StatusCode::kNoSpace, "no memory to keep the old values of ", delta.count(),
                 " changes");
  }
  const unsigned width = delta.unit_bytes;
  const std::uint32_t* const offsets = delta.offsets.data();
  std::byte* const units = tensor_data + delta.origin * width;
  std::memcpy(memory, offsets, delta.offsets.size_bytes());
  std::byte* const kept = memory + delta.offsets.size_bytes();
  std::memcpy(kept, old_values, delta.count() * width);
  return kernels.scatter_digested(key, width, delta.origin, offsets, delta.count(), kept,
                                  delta.values, units);
}

void UndoLog::roll_back(const HostKernels& kernels, Snapshot& snapshot) {
  for (std::size_t i = used_; i-- > 0;) {
    const Piece& piece = pieces_[i];
    const std::byte* const memory = piece.memory.bytes().data();
    kernels.scatter(snapshot.data(piece.tensor) + piece.origin * piece.unit_bytes, piece.unit_bytes,
                    reinterpret_cast<const std::uint32_t*>(memory), piece.count,
                    memory + piece.count * sizeof(std::uint32_t));
  }
  clear();
}

void UndoLog::clear() {
  constexpr std::uint64_t kAlwaysKept = std::uint64_t{16} << 20;
  std::uint64_t needed = 0, held = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (i < used_) needed += pieces_[i].memory.size();
    held += pieces_[i].memory.capacity();
  }
  used_ = 0;
  if (held > kAlwaysKept + 2 * needed) pieces_.clear();
}

}  // namespace driftless
