// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_payload.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "plugin/publish/live_weights.h"

namespace driftless {
namespace {

// Whole tensors as full frames of about a bucket's size. The snapshot takes them first; frames are
// made from it by a thread of its own, while the next tensors come.
class FullFramePayload final : public HostPayload {
 public:
  explicit FullFramePayload(const PayloadContext& context)
      : HostPayload(context), writer_(context.background) {}

  Status add(std::span<const PairedTensor> batch) override {
    // Frames want their runs in the layout's order.
    std::vector<PairedTensor> sorted(batch.begin(), batch.end());
    std::ranges::sort(sorted, {}, &PairedTensor::number);
    for (const PairedTensor& offered : sorted) DRIFTLESS_RETURN_IF_ERROR(cut(offered));
    return flush();  // the next batch may have tensors before these
  }

  Status finish() override { return writer_.finish(); }

 private:
  Status cut(const PairedTensor& offered) {
    const TensorSpec& spec = context_.snapshot->spec(offered.number);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, take_whole(offered));
    if (!runs_.empty() && dtype_ != spec.dtype) DRIFTLESS_RETURN_IF_ERROR(flush());
    dtype_ = spec.dtype;
    const OwnedTensor& owned = context_.snapshot->owned(offered.number);
    if (owned.parts().empty()) {
      return cut(owned, owned.block(), BlockPlace::all(owned.place().units), bytes);
    }
    for (const OwnedTensor::Part& part : owned.parts()) {
      DRIFTLESS_RETURN_IF_ERROR(cut(owned, &part.block, part.inside, bytes));
    }
    return {};
  }

  // A block that lies at `inside` in `bytes`.
  Status cut(const OwnedTensor& owned, const TensorBlock* block, const BlockPlace& inside,
             std::span<const std::byte> bytes) {
    const unsigned width = unit_bytes(dtype_);
    const std::uint64_t most = std::max<std::uint64_t>(context_.buffer_bytes / width, 1);
    for (std::uint64_t at = 0; at < inside.units;) {
      if (pending_bytes_ / width >= most) DRIFTLESS_RETURN_IF_ERROR(flush());
      const std::uint64_t count = std::min(inside.units - at, most - pending_bytes_ / width);
      runs_.push_back({owned.tensor(), at,
                       inside.contiguous()
                           ? bytes.subspan((inside.first + at) * width, count * width)
                           : gather(inside, at, count, bytes),
                       block});
      pending_bytes_ += count * width;
      at += count;
    }
    return {};
  }

  // Units of a block that do not adjoin, as a copy that lives until the frame is written.
  std::span<const std::byte> gather(const BlockPlace& inside, std::uint64_t first,
                                    std::uint64_t count, std::span<const std::byte> bytes) {
    const unsigned width = unit_bytes(dtype_);
    std::vector<std::byte>& copy = copies_.emplace_back(count * width);
    for (std::uint64_t done = 0; done < count;) {
      const std::uint64_t unit = first + done;
      const std::uint64_t some = std::min(count - done, inside.run - unit % inside.run);
      std::memcpy(copy.data() + done * width, bytes.data() + inside.at(unit) * width, some * width);
      done += some;
    }
    return copy;
  }

  Status flush() {
    if (runs_.empty()) return {};
    auto ready =
        std::make_shared<const Ready>(Ready{std::exchange(runs_, {}), std::exchange(copies_, {})});
    findings_.delta_bytes += std::exchange(pending_bytes_, 0);
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the task owns them
    return writer_.hand_over([this, dtype = dtype_, index = parts_++, ready = std::move(ready)] {
      return write_full_frame(context_, dtype, ready->runs, index, findings_);
    });
  }

  struct Ready {
    std::vector<DenseRun> runs;
    std::deque<std::vector<std::byte>> copies;
  };
  std::vector<DenseRun> runs_;  // into the snapshot, or the copies
  std::deque<std::vector<std::byte>> copies_;
  DType dtype_ = DType::kU8;
  std::uint64_t pending_bytes_ = 0;
  std::uint32_t parts_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before what it uses
};

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context) {
  const bool full = context.frame.encoding == Encoding::kFull;
  switch (context.directory_layout) {
    case DirectoryLayout::kHfDelta: return make_shard_payload(context);
    case DirectoryLayout::kFlush:
      // The format of flush files knows no whole tensors; a full version is a plain checkpoint.
      return full ? make_shard_payload(context) : make_bucket_payload(context);
    default:
      if (full) return std::make_unique<FullFramePayload>(context);
      if (context.frame.encoding == Encoding::kCompact) return make_compact_payload(context);
      return make_bucket_payload(context);
  }
}

Status HostPayload::compare(std::span<const PairedTensor> batch,
                            const std::function<Status(const DiffPiece&)>& collect) {
  if (findings_.dense) return {};
  if (context_.live != nullptr) return look_up(batch, collect);
  std::vector<TensorPair> pairs;
  for (const PairedTensor& offered : batch) {
    const Snapshot& snapshot = *context_.snapshot;
    pairs.push_back({offered.number, unit_bytes(snapshot.spec(offered.number).dtype),
                     snapshot.owned(offered.number).place().units, snapshot.data(offered.number),
                     offered.new_data});
  }
  DiffOptions options;
  options.threads = context_.threads;
  options.old_values = true;
  const Status status = diff_tensors(
      host_kernels(), pairs, options, [this](const DiffPiece& piece) { return absorb(piece); },
      collect);
  return findings_.dense ? Status() : status;  // stopped on purpose
}

// While the piece is in the cache: the old values are kept, the snapshot takes the new ones.
Status HostPayload::absorb(const DiffPiece& piece) {
  if (piece.delta.count() == 0) return {};
  const std::uint32_t number = piece.pair->tensor;
  const OwnedTensor& owned = context_.snapshot->owned(number);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Digest change,
      context_.undo->apply(host_kernels(), digest_tensor_key(context_.snapshot->spec(number).name),
                           owned.place(), context_.snapshot->data(number), piece.delta,
                           piece.old_values));
  const std::scoped_lock lock(mutex_);
  findings_.digests[owned.tensor()] += change;
  findings_.changed_units += piece.delta.count();
  findings_.dense = findings_.changed_units > context_.dense_above_units;
  return findings_.dense ? error(StatusCode::kUnsupported, "dense") : Status();
}

Status HostPayload::look_up(std::span<const PairedTensor> batch,
                            const std::function<Status(const DiffPiece&)>& collect) {
  for (const PairedTensor& offered : batch) {
    const std::uint32_t tensor = context_.snapshot->owned(offered.number).tensor();
    const Digest* const change = context_.live->change(tensor);
    if (change == nullptr) continue;
    findings_.digests[tensor] = *change;
    DRIFTLESS_RETURN_IF_ERROR(context_.live->each_piece(
        offered.number, [&](const DeltaView& delta, const std::byte* old_values) -> Status {
          findings_.changed_units += delta.count();
          findings_.dense = findings_.changed_units > context_.dense_above_units;
          if (findings_.dense) return {};
          return collect({nullptr, delta.origin, 0, delta, old_values});
        }));
    if (findings_.dense) return {};
  }
  return {};
}

Result<std::span<const std::byte>> HostPayload::take_whole(const PairedTensor& offered) {
  std::byte* const kept = context_.snapshot->data(offered.number);
  const std::span<const std::byte> bytes = context_.snapshot->bytes(offered.number);
  // An anchor is made from the snapshot itself.
  if (kept != offered.new_data) std::copy_n(offered.new_data, bytes.size(), kept);
  DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest,
                             context_.snapshot->digest(offered.number, context_.threads));
  findings_.digests[context_.snapshot->owned(offered.number).tensor()] += digest;
  return bytes;
}

Status write_full_frame(const PayloadContext& context, DType dtype, std::span<const DenseRun> runs,
                        std::uint32_t index, PayloadFindings& findings) {
  FrameContext frame = context.frame;
  frame.index = index;
  std::vector<std::byte>& encoded = context.buffers->encoded;
  encoded.clear();
  DRIFTLESS_RETURN_IF_ERROR(encode_full_frame(frame, *context.layout, dtype, runs, encoded));
  return put_frame(context, frame_file_name(frame.rank, index), encoded, findings);
}

Status put_frame(const PayloadContext& context, const std::string& name,
                 const std::vector<std::byte>& frame, PayloadFindings& findings) {
  if (context.frames != nullptr) {
    context.frames->push_back(frame);
    return {};
  }
  findings.tables[name] = frame_table_hash(frame);
  return put_part(*context.road, name, frame);
}

Status put_part(SendRoad& road, const std::string& name, std::span<const std::byte> bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, road.create_part(name));
  DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, bytes));
  return part->sync();
}

BackgroundWriter::BackgroundWriter(bool background)
    : background_(background && environment().has_threads()) {}

Status BackgroundWriter::hand_over(Work work) {
  DRIFTLESS_RETURN_IF_ERROR(finish());
  // Nothing may leave the thread.
  auto guarded = [work = std::move(work)]() -> Status {
    try {
      return work();
    } catch (const std::exception& caught) {
      return error(StatusCode::kNoSpace, "writing a version: ", caught.what());
    }
  };
  begun_ = std::async(background_ ? std::launch::async : std::launch::deferred, std::move(guarded));
  return background_ ? Status() : finish();
}

Status BackgroundWriter::finish() {
  if (begun_.valid()) status_ = begun_.get();
  return status_;
}

std::string_view to_string(SnapshotPlace place) {
  switch (place) {
    case SnapshotPlace::kPinned: return "pinned";
    case SnapshotPlace::kDevice: return "device";
    case SnapshotPlace::kNone: return "none";
    default: return "host";
  }
}

Result<SnapshotPlace> parse_snapshot(std::string_view name) {
  for (const SnapshotPlace place : {SnapshotPlace::kHost, SnapshotPlace::kPinned,
                                    SnapshotPlace::kDevice, SnapshotPlace::kNone}) {
    if (name == to_string(place)) return place;
  }
  return error(StatusCode::kInvalidArgument, "expected host, pinned, device or none, found '", name,
               "'");
}

Result<Snapshot> Snapshot::create(const WeightLayout& layout, std::vector<OwnedTensor> owned,
                                  PublisherDevice* device) {
  Snapshot snapshot;
  snapshot.layout_ = &layout;
  snapshot.owned_ = std::move(owned);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < snapshot.owned_.size(); ++i) {
    bytes += aligned(snapshot.size_bytes(i));
  }
  bytes = std::max(bytes, kAlignment);
  const bool on_device = device != nullptr && device->on_device();
  snapshot.device_ = device;
  snapshot.memory_ = on_device ? device->memory() : make_host_memory();
  DRIFTLESS_ASSIGN_OR_RETURN(snapshot.slab_, device != nullptr ? device->allocate(bytes)
                                                               : snapshot.memory_->allocate(bytes));
  std::byte* at = snapshot.slab_.get();
  for (std::uint32_t i = 0; i < snapshot.owned_.size(); ++i) {
    snapshot.data_.push_back(at);
    at += aligned(snapshot.size_bytes(i));
  }
  return snapshot;
}

Snapshot Snapshot::without_memory(const WeightLayout& layout, std::vector<OwnedTensor> owned,
                                  PublisherDevice* device) {
  Snapshot snapshot;
  snapshot.layout_ = &layout;
  snapshot.owned_ = std::move(owned);
  snapshot.device_ = device;
  snapshot.memory_ = device != nullptr ? device->memory() : make_host_memory();
  snapshot.data_.resize(snapshot.owned_.size());
  return snapshot;
}

Status Snapshot::recut(std::span<const BlockCut> cuts) {
  std::vector<OwnedTensor> owned;
  for (const OwnedTensor& each : owned_) {
    const auto cut = std::ranges::lower_bound(cuts, each.tensor(), {}, &BlockCut::tensor);
    const bool wanted = cut != cuts.end() && cut->tensor == each.tensor();
    DRIFTLESS_ASSIGN_OR_RETURN(
        owned.emplace_back(),
        OwnedTensor::make(each.tensor(), (*layout_)[each.tensor()],
                          each.block() != nullptr ? each.block()->box : TensorBox(),
                          wanted ? &*cut : nullptr));
  }
  owned_ = std::move(owned);
  return {};
}

Status Snapshot::write(std::uint32_t number, const std::byte* from) {
  const std::uint64_t size = size_bytes(number);
  if (device_ != nullptr) return device_->copy(data_[number], from, size);
  std::copy_n(from, size, data_[number]);
  return {};
}

Result<Digest> Snapshot::digest(std::uint32_t number, const std::byte* units, MemoryKind kind,
                                unsigned threads) const {
  return digest(spec(number), owned(number).place(), units, kind, threads);
}

Result<Digest> Snapshot::digest(const TensorSpec& tensor, const BlockPlace& place,
                                const std::byte* units, MemoryKind kind, unsigned threads) const {
  const DigestTensorKey key = digest_tensor_key(tensor.name);
  const unsigned unit = unit_bytes(tensor.dtype);
  const DensePiece all{place.first * unit,
                       {units, place.units * unit},
                       kind,
                       place.contiguous() ? nullptr : &place,
                       0};
  std::vector<TensorBytes> stretches;
  DRIFTLESS_RETURN_IF_ERROR(all.each_stretch(unit, [&](const DensePiece& stretch) {
    stretches.push_back({stretch, &key});
    return Status();
  }));
  if (kind == MemoryKind::kHost) return digest_on_host(stretches, threads);
  return memory_->digest(stretches, threads);
}

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

void UndoLog::roll_back(const HostKernels& kernels, Snapshot& snapshot) {
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
