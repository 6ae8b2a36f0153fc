// SPDX-License-Identifier: Apache-2.0
// Deltas that are found on the device. If the road's parts lie on the device, whole frames are
// assembled there, and only their heads come from the host; otherwise the streams are copied to the
// host once.
#include <algorithm>
#include <map>

#include "kernels/device_hash.h"
#include "plugin/device/device_payload.h"

namespace driftless {
namespace {

// One slice's changes, kept until the version is committed or dropped.
struct Kept {
  DType dtype = DType::kU8;
  std::vector<BucketEntry> entries;
  std::vector<std::uint32_t> numbers;  // of each, in the snapshot
  std::uint64_t position_bytes = 0, value_bytes = 0;
  std::byte* frame_dev = nullptr;  // if the road's parts lie on the device
  std::uint64_t frame_bytes = 0, table_at = 0;
  std::byte* positions_dev = nullptr;
  std::byte* values_dev = nullptr;
  std::size_t first_sum = 0;  // the first of its entries' sums
};

class DeviceDeltaPayload final : public RankPayload {
 public:
  DeviceDeltaPayload(const PayloadContext& context, DeviceWork& work)
      : context_(context),
        work_(work),
        compact_(context.frame.encoding == Encoding::kCompact),
        coding_(context.frame.encoding == Encoding::kIndices || compact_
                    ? cuda::PositionCoding::kIndices
                    : cuda::PositionCoding::kGaps),
        frames_on_device_(context.frames == nullptr &&
                          context.road->part_memory() == MemoryKind::kDevice &&
                          context.directory_layout == DirectoryLayout::kFrames &&
                          context.frame.encoding != Encoding::kDeltasZstd && !compact_) {}
  ~DeviceDeltaPayload() override { work_.differ.drop(); }

  Status add(std::span<const PairedTensor> batch) override {
    // A slice, and so a part, holds one type: tensors of a type are compared together.
    std::vector<PairedTensor> by_type(batch.begin(), batch.end());
    std::ranges::stable_sort(by_type, {}, [&](const PairedTensor& each) {
      return context_.store->spec(each.number).dtype;
    });
    for (const PairedTensor& offered : by_type) {
      if (findings_.dense) break;
      DRIFTLESS_RETURN_IF_ERROR(cut(offered));
    }
    // The batch's memory may be freed after this call.
    DRIFTLESS_RETURN_IF_ERROR(start_slice());
    while (work_.differ.pending()) DRIFTLESS_RETURN_IF_ERROR(absorb());
    return work_.stream.wait();
  }

  Status finish() override {
    if (findings_.dense) return {};
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    for (const auto& [tensor, sums] : sums_) {
      findings_.digests[tensor] += cuda::digest_from_sums(
          std::span<const std::uint64_t, cuda::kDigestSums>(sums, cuda::kDigestSums));
    }
    for (const DeviceWork::Change& change : work_.changes) {
      DRIFTLESS_RETURN_IF_ERROR(
          change.patch.check().with_context("what the GPU found cannot be: memory is damaged"));
    }
    return frames_on_device_ ? put_frames() : compact_ ? put_coded() : Status();
  }

 private:
  // Cuts a tensor into slices of one dtype and at most slice_bytes per side.
  Status cut(const PairedTensor& offered) {
    const TensorSpec& spec = context_.store->spec(offered.number);
    const unsigned width = unit_bytes(spec.dtype);
    const std::uint64_t most = std::max<std::uint64_t>(work_.options.slice_bytes / width, 1 << 20);
    const std::uint64_t units = context_.store->owned(offered.number).place().units;
    if (!slice_.empty() && slice_dtype_ != spec.dtype) DRIFTLESS_RETURN_IF_ERROR(start_slice());
    slice_dtype_ = spec.dtype;
    for (std::uint64_t first = 0; first < units;) {
      if (slice_units_ >= most) DRIFTLESS_RETURN_IF_ERROR(start_slice());
      if (findings_.dense) return {};  // no further slice is started
      // A multiple of 16, so that the next stretch is aligned like the tensor.
      const std::uint64_t count = std::min(units - first, (most - slice_units_ + 15) / 16 * 16);
      SlicePiece piece;
      piece.number = offered.number;
      piece.first_unit = first;
      piece.units = count;
      piece.huge = units > (std::uint64_t{1} << 31);
      piece.old_data = context_.store->data(offered.number) + first * width;
      piece.new_data = offered.new_data + first * width;
      piece.old_kind = context_.store->memory_kind();
      piece.new_kind = offered.memory;
      slice_.push_back(piece);
      slice_units_ += count;
      first += count;
    }
    return {};
  }

  Status start_slice() {
    if (slice_.empty() || findings_.dense) return {};
    DRIFTLESS_RETURN_IF_ERROR(
        work_.differ.start(std::move(slice_), unit_bytes(slice_dtype_), coding_));
    slice_.clear();
    slice_units_ = 0;
    dtypes_.push_back(slice_dtype_);
    if (dtypes_.size() - absorbed_ == 2) DRIFTLESS_RETURN_IF_ERROR(absorb());
    return {};
  }

  // Takes the oldest slice's changes: keeps and digests them, and writes them to the road.
  Status absorb() {
    DRIFTLESS_ASSIGN_OR_RETURN(const SliceResults results, work_.differ.take());
    const DType dtype = dtypes_[absorbed_++];
    if (findings_.dense) return {};
    findings_.changed_units += results.changed;
    if (findings_.changed_units > context_.dense_above_units) {
      findings_.dense = true;
      return {};
    }
    if (results.changed == 0) return work_.differ.release();
    Kept kept;
    kept.dtype = dtype;
    DRIFTLESS_RETURN_IF_ERROR(keep(results, kept));
    kept.first_sum = sums_.size();
    DRIFTLESS_RETURN_IF_ERROR(note_change(results, kept));
    DRIFTLESS_RETURN_IF_ERROR(work_.differ.release());
    if (frames_on_device_ || compact_) {
      frames_.push_back(std::move(kept));
      return {};
    }
    return write_from_host(kept);
  }

  // Copies the streams to their final place: into a frame, if frames are made on the device.
  Status keep(const SliceResults& results, Kept& kept) {
    const unsigned width = unit_bytes(kept.dtype);
    for (std::size_t i = 0; i < results.entries.size(); ++i) {
      const cuda::StreamEntry& entry = results.entries[i];
      if (entry.count == 0) continue;
      const OwnedTensor& owned = context_.store->owned(results.pieces[i].number);
      BucketEntry like;
      like.tensor = owned.tensor();
      like.block = owned.block();
      like.position_bytes = entry.position_bytes;
      like.position_begin = entry.position_begin;
      like.position_end = entry.position_begin + entry.count * entry.position_bytes;
      like.value_begin = entry.value_begin;
      like.value_end = entry.value_begin + entry.count;
      kept.entries.push_back(like);
      kept.numbers.push_back(results.pieces[i].number);
    }
    kept.position_bytes = results.position_bytes;
    kept.value_bytes = results.changed * width;
    DRIFTLESS_RETURN_IF_ERROR(frames_on_device_ ? lay_out_frame(kept) : lay_out_streams(kept));
    DRIFTLESS_RETURN_IF_ERROR(
        work_.stream.copy(kept.positions_dev, results.positions_dev, kept.position_bytes));
    return work_.stream.copy(kept.values_dev, results.values_dev, kept.value_bytes);
  }

  Status lay_out_streams(Kept& kept) {
    DRIFTLESS_ASSIGN_OR_RETURN(kept.positions_dev, work_.found.take(kept.position_bytes));
    DRIFTLESS_ASSIGN_OR_RETURN(kept.values_dev, work_.found.take(kept.value_bytes));
    return {};
  }

  [[nodiscard]] BucketShape shape_of(const Kept& kept) const {
    const Encoding coding =
        coding_ == cuda::PositionCoding::kIndices ? Encoding::kIndices : Encoding::kDeltas;
    return {coding, kept.dtype, kept.entries, kept.position_bytes, kept.value_bytes};
  }
  [[nodiscard]] FrameContext frame_context(std::size_t index) const {
    FrameContext frame = context_.frame;
    frame.index = static_cast<std::uint32_t>(index);
    return frame;
  }

  // Writes all of the frame except its table, whose hashes need the final bytes.
  Status lay_out_frame(Kept& kept) {
    DRIFTLESS_ASSIGN_OR_RETURN(const FramePlan plan,
                               plan_frame(frame_context(frames_.size()), shape_of(kept)));
    const FramePlaces& places = plan.places;
    kept.frame_bytes = plan.frame_bytes;
    kept.table_at = places.table;
    DRIFTLESS_ASSIGN_OR_RETURN(kept.frame_dev, work_.found.take(kept.frame_bytes));
    kept.positions_dev = kept.frame_dev + places.positions;
    kept.values_dev = kept.frame_dev + places.values;
    // Copies the header through pinned memory; the gaps between and behind the streams are zero.
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const pinned, work_.host.take(plan.header.size()));
    std::ranges::copy(plan.header, pinned);
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(kept.frame_dev, pinned, plan.header.size()));
    const std::uint64_t positions_end = places.positions + kept.position_bytes;
    const std::uint64_t values_end = places.values + kept.value_bytes;
    DRIFTLESS_RETURN_IF_ERROR(
        work_.stream.clear(kept.frame_dev + positions_end, places.values - positions_end));
    return work_.stream.clear(kept.frame_dev + values_end, places.table - values_end);
  }

  // Queues the change of the digest, and prepares the patch of the snapshot.
  Status note_change(const SliceResults& results, const Kept& kept) {
    const unsigned width = unit_bytes(kept.dtype);
    std::vector<cuda::Patch::Tensor> compared, snapshot, in_tensor;
    std::vector<std::uint32_t> tensors;
    bool blocks = false;
    for (std::size_t i = 0; i < results.entries.size(); ++i) {
      if (results.entries[i].count == 0) continue;
      const SlicePiece& piece = results.pieces[i];
      const OwnedTensor& owned = context_.store->owned(piece.number);
      cuda::Patch::Tensor tensor;
      tensor.units = owned.place().units;
      tensor.entry = results.entries[i];
      tensor.key = digest_tensor_key(context_.store->spec(piece.number).name);
      // Positions count from the block's start, but only this stretch of it is in memory.
      tensor.data_dev = const_cast<std::byte*>(results.old_dev[i]) - piece.first_unit * width;
      compared.push_back(tensor);
      tensors.push_back(owned.tensor());
      tensor.data_dev = context_.store->data(piece.number);
      snapshot.push_back(tensor);
      tensor.place = owned.place();
      in_tensor.push_back(tensor);
      blocks = blocks || owned.block() != nullptr;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const cuda::Patch patch,
                               work_.make_patch(compared, width, coding_, kept.positions_dev));
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const old_values, work_.found.take(kept.value_bytes));
    DRIFTLESS_RETURN_IF_ERROR(patch.gather(old_values, work_.stream.get()));
    // A block is contiguous here, but for the digest its units have other places in the tensor.
    std::optional<cuda::Patch> placed;
    if (blocks) {
      DRIFTLESS_ASSIGN_OR_RETURN(placed,
                                 work_.make_patch(in_tensor, width, coding_, kept.positions_dev));
    }
    DRIFTLESS_RETURN_IF_ERROR(
        sum_up(placed ? *placed : patch, tensors, old_values, kept.values_dev));
    if (context_.store->memory_kind() == MemoryKind::kDevice) {
      work_.changes.push_back({patch, kept.values_dev});
      return {};
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const cuda::Patch later,
                               work_.make_patch(snapshot, width, coding_, kept.positions_dev));
    work_.changes.push_back({later, kept.values_dev});
    return {};
  }

  Status sum_up(const cuda::Patch& patch, std::span<const std::uint32_t> tensors,
                const std::byte* old_values, const std::byte* new_values) {
    const std::uint64_t bytes = tensors.size() * cuda::kDigestSums * sizeof(std::uint64_t);
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const dev, work_.found.take(bytes));
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const pinned, work_.host.take(bytes));
    DRIFTLESS_RETURN_IF_ERROR(patch.digest_changes(
        old_values, new_values, reinterpret_cast<std::uint64_t*>(dev), work_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(pinned, dev, bytes));
    const auto* sums = reinterpret_cast<const std::uint64_t*>(pinned);
    for (const std::uint32_t tensor : tensors) {
      sums_.emplace_back(tensor, sums);
      sums += cuda::kDigestSums;
    }
    return {};
  }

  Status write_from_host(const Kept& kept) {
    DRIFTLESS_RETURN_IF_ERROR(
        fetched_.reserve(kept.position_bytes + kept.value_bytes + 16, MemoryKind::kHost));
    std::byte* const values = fetched_.data() + (kept.position_bytes + 15) / 16 * 16;
    DRIFTLESS_RETURN_IF_ERROR(
        work_.stream.copy(fetched_.data(), kept.positions_dev, kept.position_bytes));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(values, kept.values_dev, kept.value_bytes));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    BucketView bucket;
    bucket.coding =
        coding_ == cuda::PositionCoding::kIndices ? Encoding::kIndices : Encoding::kDeltas;
    bucket.dtype = kept.dtype;
    bucket.entries = kept.entries;
    bucket.positions = {fetched_.data(), kept.position_bytes};
    bucket.values = {values, kept.value_bytes};
    const bool cut = std::ranges::any_of(kept.numbers, [&](std::uint32_t number) {
      return !context_.store->owned(number).parts().empty();
    });
    return cut || compact_ ? write_parts(bucket, kept.numbers)
                           : write_bucket(context_, bucket, parts_++, findings_);
  }

  // Writes the changes, split into the parts that blocks are cut into; for `compact` as deltas.
  Status write_parts(const BucketView& found, std::span<const std::uint32_t> numbers) {
    PayloadContext context = context_;
    if (compact_) context.frame.encoding = Encoding::kDeltas;
    BucketBuilder bucket(*context_.layout, context.frame.encoding);
    BlockSplitter splitter;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const OwnedTensor& owned = context_.store->owned(numbers[i]);
      BucketEntry entry = found.entries[i];
      entry.block = nullptr;  // positions stay in the owned block
      EntryCursor cursor(*context_.layout, found, entry);
      for (;;) {
        DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
        if (delta.count() == 0) break;
        if (owned.parts().empty()) {
          DRIFTLESS_RETURN_IF_ERROR(bucket.add(delta, owned.block()));
        } else {
          splitter.add(owned, delta);
        }
      }
      DRIFTLESS_RETURN_IF_ERROR(
          splitter.take([&](const DeltaView& delta, const TensorBlock* block) {
            return bucket.add(delta, block);
          }));
    }
    return write_bucket(context, bucket.view(), parts_++, findings_);
  }

  // Writes in `compact` what can be coded, and the rest as deltas.
  Status put_coded() {
    std::map<DType, std::vector<SliceChanges>> coded;
    std::map<DType, std::vector<std::pair<const Kept*, std::size_t>>> entries;  // of `coded`
    for (const Kept& kept : frames_) {
      Kept rest = kept;
      rest.entries.clear();
      rest.numbers.clear();
      for (std::size_t i = 0; i < kept.entries.size(); ++i) {
        if (!is_coded(kept.numbers[i])) {
          rest.entries.push_back(kept.entries[i]);
          rest.numbers.push_back(kept.numbers[i]);
          continue;
        }
        const BucketEntry& entry = kept.entries[i];
        const cuda::StreamEntry stream{entry.count(), entry.value_begin, entry.position_begin,
                                       entry.position_bytes, 0};
        coded[kept.dtype].push_back({kept.numbers[i], stream, kept.positions_dev, kept.values_dev,
                                     sums_[kept.first_sum + i].second});
        entries[kept.dtype].emplace_back(&kept, i);
      }
      if (!rest.entries.empty()) DRIFTLESS_RETURN_IF_ERROR(write_from_host(rest));
    }
    for (const auto& [dtype, found] : coded) {
      std::size_t written = 0;
      const Status coding =
          write_compact_frames(context_, work_, dtype, found, parts_, findings_, written);
      if (coding.code() != StatusCode::kNoSpace) {
        DRIFTLESS_RETURN_IF_ERROR(coding);
        continue;
      }
      for (; written < found.size(); ++written) {  // no device memory to code it
        const auto& [kept, entry] = entries[dtype][written];
        Kept one = *kept;
        one.entries = {kept->entries[entry]};
        one.numbers = {kept->numbers[entry]};
        DRIFTLESS_RETURN_IF_ERROR(write_from_host(one));
      }
    }
    return {};
  }
  [[nodiscard]] bool is_coded(std::uint32_t number) const {
    const OwnedTensor& owned = context_.store->owned(number);
    return compact_fields(context_.store->spec(number).dtype) && owned.parts().empty() &&
           !std::ranges::binary_search(context_.plain, owned.tensor());
  }

  // Hashes all streams at once: a hash is a sequential chain, and the chains run in parallel.
  Status put_frames() {
    std::vector<std::span<const std::byte>> hashed;
    for (const Kept& kept : frames_) {
      const unsigned unit = unit_bytes(kept.dtype);
      for (const BucketEntry& entry : kept.entries) {
        hashed.emplace_back(kept.positions_dev + entry.position_begin,
                            entry.position_end - entry.position_begin);
        hashed.emplace_back(kept.values_dev + entry.value_begin * unit, entry.count() * unit);
      }
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, device_xxh3_128(hashed));
    std::size_t at = 0;
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      const Kept& kept = frames_[i];
      std::vector<Hash128> blocks;
      for (std::size_t k = 0; k < kept.entries.size(); ++k, at += 2) {
        blocks.push_back(block_hash(hashes[at], hashes[at + 1]));
      }
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> table,
                                 encode_frame_table(frame_context(i), shape_of(kept), blocks));
      DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const pinned, work_.host.take(table.size()));
      std::ranges::copy(table, pinned);
      DRIFTLESS_RETURN_IF_ERROR(
          work_.stream.copy(kept.frame_dev + kept.table_at, pinned, table.size()));
    }
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      DRIFTLESS_RETURN_IF_ERROR(put_part(
          *context_.road, frame_file_name(context_.frame.rank, static_cast<std::uint32_t>(i)),
          {frames_[i].frame_dev, frames_[i].frame_bytes}));
    }
    return {};
  }

  PayloadContext context_;
  DeviceWork& work_;
  bool compact_;
  cuda::PositionCoding coding_;
  bool frames_on_device_;
  std::vector<SlicePiece> slice_;  // being filled
  DType slice_dtype_ = DType::kU8;
  std::uint64_t slice_units_ = 0;
  std::vector<DType> dtypes_;  // of the slices that were started
  std::size_t absorbed_ = 0;
  std::vector<Kept> frames_;
  // The change of the digest by each changed stretch of a tensor, in pinned memory; valid after the
  // stream has finished.
  std::vector<std::pair<std::uint32_t, const std::uint64_t*>> sums_;
  DeviceBuffer fetched_;
  std::uint32_t parts_ = 0;
};

}  // namespace

std::unique_ptr<RankPayload> make_device_delta_payload(const PayloadContext& context,
                                                       DeviceWork& work) {
  return std::make_unique<DeviceDeltaPayload>(context, work);
}

}  // namespace driftless
