// SPDX-License-Identifier: Apache-2.0
// Whole tensors of a publisher with a GPU.
#include <algorithm>

#include "plugin/device/device_payload.h"

namespace driftless {
namespace {

// Copies the tensors into the snapshot on the device, then makes frames from the snapshot: one
// bucket at a time is copied to pinned memory and written.
class DeviceFullPayload final : public RankPayload {
 public:
  DeviceFullPayload(const PayloadContext& context, DeviceWork& work)
      : context_(context), work_(work) {}

  Status add(std::span<const PairedTensor> batch) override {
    std::vector<PairedTensor> sorted(batch.begin(), batch.end());
    const WeightStore& snapshot = *context_.store;
    // A frame holds one type, in the layout's order.
    std::ranges::sort(sorted, {}, [&](const PairedTensor& each) {
      return std::pair(snapshot.spec(each.number).dtype, each.number);
    });
    for (const PairedTensor& offered : sorted) {
      std::byte* const kept = snapshot.data(offered.number);
      if (kept == offered.new_data) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          work_.stream.copy(kept, offered.new_data, snapshot.size_bytes(offered.number)));
    }
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    for (const PairedTensor& offered : sorted) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          const Digest digest,
          snapshot.digest({offered.number, snapshot.data(offered.number), snapshot.memory_kind()}));
      findings_.digests[snapshot.owned(offered.number).tensor()] += digest;
    }
    for (const PairedTensor& offered : sorted) DRIFTLESS_RETURN_IF_ERROR(cut(offered.number));
    return flush();  // the next batch may have earlier tensors
  }

  Status finish() override { return {}; }

 private:
  // Splits a tensor into the parts that it is cut into, if each is contiguous.
  Status cut(std::uint32_t number) {
    const TensorSpec& spec = context_.store->spec(number);
    const OwnedTensor& owned = context_.store->owned(number);
    const std::span<const std::byte> bytes = context_.store->bytes(number);
    if (!runs_.empty() && dtype_ != spec.dtype) DRIFTLESS_RETURN_IF_ERROR(flush());
    dtype_ = spec.dtype;
    DRIFTLESS_RETURN_IF_ERROR(pinned_.reserve(context_.buffer_bytes + 8, MemoryKind::kHost));
    const auto parts = owned.parts();
    const bool rows = std::ranges::all_of(
        parts, [](const OwnedTensor::Part& part) { return part.inside.contiguous(); });
    if (parts.empty() || !rows) return cut(owned.tensor(), owned.block(), bytes);
    for (const OwnedTensor::Part& part : parts) {
      const unsigned width = unit_bytes(dtype_);
      DRIFTLESS_RETURN_IF_ERROR(
          cut(owned.tensor(), &part.block,
              bytes.subspan(part.inside.first * width, part.inside.units * width)));
    }
    return {};
  }

  Status cut(std::uint32_t tensor, const TensorBlock* block, std::span<const std::byte> bytes) {
    const unsigned width = unit_bytes(dtype_);
    const std::uint64_t most = std::max<std::uint64_t>(context_.buffer_bytes / width, 1) * width;
    for (std::uint64_t at = 0; at < bytes.size();) {
      if (pending_bytes_ >= most) DRIFTLESS_RETURN_IF_ERROR(flush());
      const std::uint64_t size =
          std::min(bytes.size() - at, (most - pending_bytes_) / width * width);
      std::byte* const to = pinned_.data() + pending_bytes_;
      DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(to, bytes.data() + at, size));
      runs_.push_back({tensor, at / width, {to, size}, block});
      pending_bytes_ += size;
      at += size;
    }
    return {};
  }

  Status flush() {
    if (runs_.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    DRIFTLESS_RETURN_IF_ERROR(write_full_frame(context_, dtype_, runs_, parts_++, findings_));
    runs_.clear();
    pending_bytes_ = 0;
    return {};
  }

  PayloadContext context_;
  DeviceWork& work_;
  DeviceBuffer pinned_;
  std::vector<DenseRun> runs_;  // in pinned_
  DType dtype_ = DType::kU8;
  std::uint64_t pending_bytes_ = 0;
  std::uint32_t parts_ = 0;
};

class HostCopyPayload final : public RankPayload {
 public:
  HostCopyPayload(const PayloadContext& context, DeviceWork& work)
      : context_(context), work_(work), inner_(make_rank_payload(context)) {}

  // Adds as many tensors at a time as fit kGroupBytes, but at least one.
  Status add(std::span<const PairedTensor> batch) override {
    while (!batch.empty()) {
      std::size_t count = 0;
      std::uint64_t bytes = 0;
      while (count < batch.size() && (count == 0 || bytes + room(batch[count]) <= kGroupBytes)) {
        bytes += room(batch[count++]);
      }
      DRIFTLESS_RETURN_IF_ERROR(add_group(batch.first(count), bytes));
      batch = batch.subspan(count);
    }
    return {};
  }

  Status finish() override {
    const Status finished = inner_->finish();
    findings_ = inner_->findings();
    return finished;
  }

 private:
  static constexpr std::uint64_t kGroupBytes = std::uint64_t{64} << 20;

  [[nodiscard]] std::uint64_t room(const PairedTensor& offered) const {
    return (context_.store->size_bytes(offered.number) + 63) / 64 * 64;
  }

  Status add_group(std::span<const PairedTensor> group, std::uint64_t bytes) {
    std::vector<PairedTensor> copied(group.begin(), group.end());
    DRIFTLESS_RETURN_IF_ERROR(pinned_.reserve(bytes, MemoryKind::kHost));
    std::byte* at = pinned_.data();
    for (PairedTensor& tensor : copied) {
      if (tensor.memory == MemoryKind::kHost) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          work_.stream.copy(at, tensor.new_data, context_.store->size_bytes(tensor.number)));
      tensor.new_data = at;
      tensor.memory = MemoryKind::kHost;
      at += room(tensor);
    }
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    return inner_->add(copied);
  }

  PayloadContext context_;
  DeviceWork& work_;
  DeviceBuffer pinned_;
  std::unique_ptr<RankPayload> inner_;
};

}  // namespace

std::unique_ptr<RankPayload> make_device_full_payload(const PayloadContext& context,
                                                      DeviceWork& work) {
  return std::make_unique<DeviceFullPayload>(context, work);
}

std::unique_ptr<RankPayload> make_host_copy_payload(const PayloadContext& context,
                                                    DeviceWork& work) {
  return std::make_unique<HostCopyPayload>(context, work);
}

}  // namespace driftless
