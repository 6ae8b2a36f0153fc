// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/snapshot_store.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<std::unique_ptr<SnapshotStore>> SnapshotStore::create(const WeightLayout& layout,
                                                             std::vector<OwnedTensor> owned,
                                                             unsigned threads,
                                                             PublisherDevice* device) {
  const bool on_device = device != nullptr && device->on_device();
  std::unique_ptr<SnapshotStore> store(
      new SnapshotStore(layout, std::move(owned), device,
                        on_device ? device->memory() : make_host_memory(), threads));
  const auto count = static_cast<std::uint32_t>(store->owned().size());
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < count; ++i) bytes += aligned(store->size_bytes(i));
  bytes = std::max(bytes, kAlignment);
  DRIFTLESS_ASSIGN_OR_RETURN(
      store->slab_, device != nullptr ? device->allocate(bytes) : store->memory()->allocate(bytes));
  std::byte* at = store->slab_.get();
  for (std::uint32_t i = 0; i < count; ++i) {
    store->place(i, at);
    at += aligned(store->size_bytes(i));
  }
  return store;
}

Result<std::vector<Digest>> SnapshotStore::digests() const {
  std::vector<Digest> digests(layout().size());
  for (const PairedTensor& each : offer()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest sum, digest(each));
    digests[owned(each.number).tensor()] += sum;
  }
  return digests;
}

Status SnapshotStore::each_change(std::span<const PairedTensor> batch,
                                  std::uint64_t dense_above_units, FoundChanges& found,
                                  const UseChange& use) {
  if (found.dense) return {};
  std::vector<TensorPair> pairs;
  for (const PairedTensor& offered : batch) {
    pairs.push_back({offered.number, unit_bytes(spec(offered.number).dtype),
                     owned(offered.number).place().units, data(offered.number), offered.new_data});
  }
  DiffOptions options;
  options.threads = threads();
  options.old_values = true;
  const Status status = diff_tensors(
      host_kernels(), pairs, options,
      [&](const DiffPiece& piece) { return absorb(piece, dense_above_units, found); }, use);
  return found.dense ? Status() : status;  // it stopped on purpose
}

// Saves the old values and writes the new ones while the piece is in the cache.
Status SnapshotStore::absorb(const DiffPiece& piece, std::uint64_t dense_above_units,
                             FoundChanges& found) {
  if (piece.delta.count() == 0) return {};
  const std::uint32_t number = piece.pair->tensor;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Digest change,
      undo_.apply(host_kernels(), digest_tensor_key(spec(number).name), owned(number).place(),
                  data(number), piece.delta, piece.old_values));
  const std::scoped_lock lock(mutex_);
  found.digests[owned(number).tensor()] += change;
  found.changed_units += piece.delta.count();
  found.units[owned(number).tensor()] += piece.delta.count();
  found.dense = found.changed_units > dense_above_units;
  return found.dense ? error(StatusCode::kUnsupported, "dense") : Status();
}

void SnapshotStore::roll_back() { undo_.roll_back(host_kernels(), *this); }

UndoLog::Piece& UndoLog::next_piece() {
  const std::scoped_lock lock(mutex_);
  if (used_ == pieces_.size()) pieces_.emplace_back();
  return pieces_[used_++];
}

bool UndoLog::keep(Piece& piece, const DeltaView& delta, const std::byte* units,
                   const std::byte* old_values) {
  const std::uint64_t width = delta.unit_bytes;
  const std::uint64_t sparse_bytes = delta.count() * (sizeof(std::uint32_t) + width);
  const std::uint64_t first = delta.offsets.empty() ? 0 : delta.offsets.front();
  const std::uint64_t adjoining = delta.offsets.empty() ? 0 : delta.offsets.back() - first + 1;
  piece.number = delta.tensor;
  piece.unit_bytes = delta.unit_bytes;
  piece.dense = adjoining * width < sparse_bytes;
  piece.origin = delta.origin + (piece.dense ? first : 0);
  piece.count = 0;
  piece.memory.shrink(0);
  std::byte* const memory = piece.memory.extend(piece.dense ? adjoining * width : sparse_bytes);
  if (memory == nullptr) return false;
  piece.count = piece.dense ? adjoining : delta.count();
  if (piece.dense) {
    std::memcpy(memory, units + first * width, adjoining * width);
  } else {
    std::memcpy(memory, delta.offsets.data(), delta.offsets.size_bytes());
    std::memcpy(memory + delta.offsets.size_bytes(), old_values, delta.count() * width);
  }
  return true;
}

Result<Digest> UndoLog::apply(const HostKernels& kernels, const DigestTensorKey& key,
                              const BlockPlace& place, std::byte* data, const DeltaView& delta,
                              const std::byte* old_values) {
  const unsigned width = delta.unit_bytes;
  std::byte* const units = data + delta.origin * width;
  if (!keep(next_piece(), delta, units, old_values)) {
    return error(StatusCode::kNoSpace, "no memory to keep the old values of ", delta.count(),
                 " changes");
  }
  const std::uint32_t* const offsets = delta.offsets.data();
  if (place.contiguous()) {
    return kernels.scatter_digested(key, width, place.first + delta.origin, offsets, delta.count(),
                                    old_values, delta.values, units);
  }
  kernels.scatter(units, width, offsets, delta.count(), delta.values);
  return digest_block_change(kernels, key, place, delta, old_values);
}

void UndoLog::roll_back(const HostKernels& kernels, const WeightStore& snapshot) {
  for (std::size_t i = used_; i-- > 0;) {
    const Piece& piece = pieces_[i];
    const std::byte* const memory = piece.memory.bytes().data();
    std::byte* const units = snapshot.data(piece.number) + piece.origin * piece.unit_bytes;
    if (piece.dense) {
      std::memcpy(units, memory, piece.count * piece.unit_bytes);
      continue;
    }
    kernels.scatter(units, piece.unit_bytes, reinterpret_cast<const std::uint32_t*>(memory),
                    piece.count, memory + piece.count * sizeof(std::uint32_t));
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
