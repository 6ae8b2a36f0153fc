// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_payload.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "plugin/interchange/layouts.h"

namespace driftless {
namespace {

// Writes whole tensors as full frames of about a bucket's size. The store takes the tensors first;
// a thread makes frames from it while the next tensors come.
class FullFramePayload final : public RankPayload {
 public:
  explicit FullFramePayload(const PayloadContext& context)
      : context_(context), writer_(context.background, context.clock) {}

  Status add(std::span<const PairedTensor> batch) override {
    // A frame holds one type, and needs its runs in the layout's order.
    std::vector<PairedTensor> sorted(batch.begin(), batch.end());
    std::ranges::sort(sorted, {}, [this](const PairedTensor& each) {
      return std::pair(context_.store->spec(each.number).dtype, each.number);
    });
    for (const PairedTensor& offered : sorted) DRIFTLESS_RETURN_IF_ERROR(cut(offered));
    return flush();  // the next batch may have earlier tensors
  }

  Status finish() override { return writer_.finish(); }

 private:
  Status cut(const PairedTensor& offered) {
    const TensorSpec& spec = context_.store->spec(offered.number);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                               context_.store->take_whole(offered, findings_));
    if (!runs_.empty() && dtype_ != spec.dtype) DRIFTLESS_RETURN_IF_ERROR(flush());
    dtype_ = spec.dtype;
    const OwnedTensor& owned = context_.store->owned(offered.number);
    if (owned.parts().empty()) {
      return cut(owned, owned.block(), BlockPlace::all(owned.place().units), bytes);
    }
    for (const OwnedTensor::Part& part : owned.parts()) {
      DRIFTLESS_RETURN_IF_ERROR(cut(owned, &part.block, part.inside, bytes));
    }
    return {};
  }

  // Adds a block that lies at `inside` in `bytes`.
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

  // Copies units of a block that do not adjoin; the copy lives until the frame is written.
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
    pending_bytes_ = 0;
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the task owns them
    return writer_.hand_over([this, dtype = dtype_, index = parts_++, ready = std::move(ready)] {
      return write_full_frame(context_, dtype, ready->runs, index, findings_);
    });
  }

  struct Ready {
    std::vector<DenseRun> runs;
    std::deque<std::vector<std::byte>> copies;
  };
  PayloadContext context_;
  std::vector<DenseRun> runs_;  // point into the store, or into the copies
  std::deque<std::vector<std::byte>> copies_;
  DType dtype_ = DType::kU8;
  std::uint64_t pending_bytes_ = 0;
  std::uint32_t parts_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before the other members
};

Status put_whole(const Result<std::unique_ptr<File>>& part, std::span<const std::byte> bytes) {
  DRIFTLESS_RETURN_IF_ERROR(part.status());
  DRIFTLESS_RETURN_IF_ERROR((*part)->pwrite(0, bytes));
  return (*part)->sync();
}

}  // namespace

std::unique_ptr<RankPayload> make_rank_payload(const PayloadContext& context) {
  const bool full = context.frame.encoding == Encoding::kFull;
  if (publication_format(context.directory_layout).sharded(full)) {
    return make_shard_payload(context);
  }
  if (full) return std::make_unique<FullFramePayload>(context);
  if (context.frame.encoding == Encoding::kCompact) return make_compact_payload(context);
  return make_bucket_payload(context);
}

Result<std::unique_ptr<RankPayload>> make_payload(PublisherDevice* device,
                                                  const PayloadContext& context) {
  if (device != nullptr) return device->make_payload(context);
  return make_rank_payload(context);
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
  return put_whole(road.create_part(name), bytes);
}

Status put_part(PartRoad& road, const std::string& name, std::span<const std::byte> bytes) {
  return put_whole(road.create_part(name), bytes);
}

BackgroundWriter::BackgroundWriter(bool background, StageClock* clock)
    : background_(background && environment().has_threads()), clock_(clock) {
  if (clock_ != nullptr) clock_->has_writer();
}

Status BackgroundWriter::hand_over(Work work) {
  DRIFTLESS_RETURN_IF_ERROR(finish());
  // No exception may leave the thread.
  auto guarded = [work = std::move(work), clock = clock_]() -> Status {
    Stopwatch watch;
    Status done;
    try {
      done = work();
    } catch (const std::exception& caught) {
      done = error(StatusCode::kNoSpace, "writing a version: ", caught.what());
    }
    if (clock != nullptr) clock->add_work(watch.lap_ms());
    return done;
  };
  begun_ = std::async(background_ ? std::launch::async : std::launch::deferred, std::move(guarded));
  return background_ ? Status() : finish();
}

Status BackgroundWriter::finish() {
  if (!begun_.valid()) return status_;
  Stopwatch watch;
  status_ = begun_.get();
  if (clock_ != nullptr) clock_->add_wait(watch.lap_ms());
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

}  // namespace driftless
