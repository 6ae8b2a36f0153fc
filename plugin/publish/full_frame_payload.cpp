// SPDX-License-Identifier: Apache-2.0
// Whole tensors as full frames of about a bucket's size. The snapshot takes them first; frames are
// made from it by a thread of its own, while the next tensors come.
#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/tensor_ops.h"
#include "plugin/publish/background_writer.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

class FullFramePayload final : public RankPayload {
 public:
  explicit FullFramePayload(const PayloadContext& context)
      : context_(context), writer_(context.background) {}

  Status add(std::span<const PairedTensor> batch) override {
    // Frames want their runs in the layout's order.
    std::vector<PairedTensor> sorted(batch.begin(), batch.end());
    std::ranges::sort(sorted, {}, &PairedTensor::tensor);
    for (const PairedTensor& offered : sorted) DRIFTLESS_RETURN_IF_ERROR(cut(offered));
    return flush();  // the next batch may have tensors before these
  }

  Status finish() override { return writer_.finish(); }

 private:
  Status cut(const PairedTensor& offered) {
    const TensorSpec& spec = (*context_.layout)[offered.tensor];
    std::byte* const kept = context_.snapshot->data(offered.tensor);
    // An anchor is made from the snapshot itself.
    if (kept != offered.new_data) std::copy_n(offered.new_data, spec.size_bytes, kept);
    const std::span<const std::byte> bytes = context_.snapshot->bytes(offered.tensor);
    findings_.digest +=
        digest_tensor(host_kernels(), digest_tensor_key(spec.name), bytes, context_.threads);
    const unsigned width = unit_bytes(spec.dtype);
    const std::uint64_t most = std::max<std::uint64_t>(context_.buffer_bytes / width, 1) * width;
    if (!runs_.empty() && dtype_ != spec.dtype) DRIFTLESS_RETURN_IF_ERROR(flush());
    dtype_ = spec.dtype;
    for (std::uint64_t at = 0; at < spec.size_bytes;) {
      if (pending_bytes_ >= most) DRIFTLESS_RETURN_IF_ERROR(flush());
      const std::uint64_t size =
          std::min(spec.size_bytes - at, most - pending_bytes_ / width * width);
      runs_.push_back({offered.tensor, at / width, bytes.subspan(at, size)});
      pending_bytes_ += size;
      at += size;
    }
    return {};
  }

  Status flush() {
    if (runs_.empty()) return {};
    auto runs = std::make_shared<const std::vector<DenseRun>>(std::exchange(runs_, {}));
    findings_.delta_bytes += std::exchange(pending_bytes_, 0);
    return writer_.hand_over([this, dtype = dtype_, index = parts_++, runs = std::move(runs)] {
      return write_full_frame(context_, dtype, *runs, index);
    });
  }

  PayloadContext context_;
  std::vector<DenseRun> runs_;  // into the snapshot
  DType dtype_ = DType::kU8;
  std::uint64_t pending_bytes_ = 0;
  std::uint32_t parts_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before what it uses
};

}  // namespace

std::unique_ptr<RankPayload> make_full_frame_payload(const PayloadContext& context) {
  return std::make_unique<FullFramePayload>(context);
}

}  // namespace driftless
