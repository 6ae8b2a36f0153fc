// SPDX-License-Identifier: Apache-2.0
// The `overwrite` payload: u32 count, u32 byte positions[count], u8 values[count], under zstd.
#include <algorithm>
#include <limits>

#include "formats/tensor_patcher.h"

namespace driftless {
namespace {

constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxCount = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kPieceCount = 16384;  // positions in memory at a time

constexpr std::uint64_t payload_bytes(std::uint64_t count) { return 4 + 5 * count; }

// One reader of the frame reads the positions; a second one skips ahead and reads the values.
class OverwritePatcher final : public TensorPatcher {
 public:
  OverwritePatcher(const TensorSpec& tensor, std::uint64_t count, ZstdReader positions,
                   ZstdReader values)
      : TensorPatcher(tensor),
        size_bytes_(tensor.size_bytes),
        left_(count),
        position_reader_(std::move(positions)),
        value_reader_(std::move(values)) {}

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    const std::uint64_t end = byte_offset + chunk.size();
    while (true) {
      for (; at_ < positions_.size() && positions_[at_] < end; ++at_) {
        chunk[positions_[at_] - byte_offset] = values_[at_];
      }
      if (at_ < positions_.size() || left_ == 0) return {};
      DRIFTLESS_RETURN_IF_ERROR(refill());
    }
  }

  Status end() override {
    if (at_ == positions_.size() && left_ == 0) return value_reader_.finish();
    return error(StatusCode::kInternal, "overwritten bytes are left over");
  }

  Status refill() {
    const std::size_t count = std::min<std::uint64_t>(left_, kPieceCount);
    positions_.resize(count);
    values_.resize(count);
    at_ = 0;
    DRIFTLESS_RETURN_IF_ERROR(position_reader_.read(std::as_writable_bytes(std::span(positions_))));
    DRIFTLESS_RETURN_IF_ERROR(value_reader_.read(values_));
    for (const std::uint32_t position : positions_) {
      if (position < next_position_ || position >= size_bytes_) {
        return error(StatusCode::kCorrupt, "byte position ", position,
                     " of an overwrite payload, expected one from ", next_position_, " to ",
                     size_bytes_);
      }
      next_position_ = std::uint64_t{position} + 1;
    }
    left_ -= count;
    return {};
  }

  std::uint64_t size_bytes_;
  std::uint64_t left_;  // positions still to be read
  std::uint64_t next_position_ = 0;
  ZstdReader position_reader_;
  ZstdReader value_reader_;
  std::vector<std::uint32_t> positions_;
  std::vector<std::byte> values_;
  std::size_t at_ = 0;  // index of the next one to be written
};

Status too_large(std::string_view tensor) {
  return error(StatusCode::kUnsupported, "tensor '", tensor,
               "': overwrite cannot address past 4 GiB; use xor");
}

}  // namespace

Result<std::unique_ptr<TensorPatcher>> make_overwrite_patcher(const TensorSpec& tensor,
                                                              std::span<const std::byte> payload) {
  const std::string context = concat("tensor '", tensor.name, "'");
  if (tensor.size_bytes > kMaxTensorBytes) return too_large(tensor.name);
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader positions, ZstdReader::open(payload).with_context(context));
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader values, ZstdReader::open(payload).with_context(context));
  std::uint32_t count = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      positions.read(std::as_writable_bytes(std::span(&count, 1))).with_context(context));
  if (positions.content_bytes() != payload_bytes(count) || count > tensor.size_bytes) {
    return error(StatusCode::kCorrupt, context, ": an overwrite payload of ",
                 positions.content_bytes(), " bytes for ", count, " positions, expected ",
                 payload_bytes(count), " and at most ", tensor.size_bytes, " positions");
  }
  DRIFTLESS_RETURN_IF_ERROR(values.skip(4 + 4 * std::uint64_t{count}).with_context(context));
  return std::unique_ptr<TensorPatcher>(
      std::make_unique<OverwritePatcher>(tensor, count, std::move(positions), std::move(values)));
}

Result<OverwriteEncoder> OverwriteEncoder::create(const TensorSpec& tensor,
                                                  std::uint64_t changed_bytes, unsigned workers,
                                                  ByteSink sink) {
  if (tensor.size_bytes > kMaxTensorBytes || changed_bytes > kMaxCount) {
    return too_large(tensor.name);
  }
  if (changed_bytes > tensor.size_bytes) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name, "': ", changed_bytes,
                 " changed bytes of ", tensor.size_bytes);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter writer, ZstdWriter::create(payload_bytes(changed_bytes),
                                                                   workers, std::move(sink)));
  const auto count = static_cast<std::uint32_t>(changed_bytes);
  DRIFTLESS_RETURN_IF_ERROR(writer.write(std::as_bytes(std::span(&count, 1))));
  return OverwriteEncoder(tensor, changed_bytes, std::move(writer));
}

Status OverwriteEncoder::add_positions(const DeltaView& delta) {
  if (delta.unit_bytes != 1 || delta.count() > count_ - positions_ || values_ > 0) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor_, "': ", delta.count(),
                 " positions of ", delta.unit_bytes, "-byte units, expected at most ",
                 count_ - positions_, " positions of bytes, before all values");
  }
  std::vector<std::uint32_t> positions(std::min<std::size_t>(delta.count(), kPieceCount));
  for (auto rest = delta.offsets; !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), positions.size()));
    for (std::size_t k = 0; k < piece.size(); ++k) {
      const std::uint64_t position = delta.origin + piece[k];
      if (position < next_position_ || position >= tensor_bytes_) {
        return error(StatusCode::kInvalidArgument, "tensor '", tensor_, "': byte position ",
                     position, ", expected one from ", next_position_, " to ", tensor_bytes_);
      }
      next_position_ = position + 1;
      positions[k] = static_cast<std::uint32_t>(position);
    }
    DRIFTLESS_RETURN_IF_ERROR(
        writer_.write(std::as_bytes(std::span(positions).first(piece.size()))));
    rest = rest.subspan(piece.size());
  }
  positions_ += delta.count();
  return {};
}

Status OverwriteEncoder::add_values(const DeltaView& delta) {
  if (delta.unit_bytes != 1 || delta.count() > count_ - values_ || positions_ != count_) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor_, "': ", delta.count(),
                 " values of ", delta.unit_bytes, " bytes, expected at most ", count_ - values_,
                 " bytes, after all positions");
  }
  values_ += delta.count();
  return writer_.write(delta.value_bytes());
}

Status OverwriteEncoder::finish() {
  if (positions_ != count_ || values_ != count_) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor_, "': ", positions_,
                 " positions and ", values_, " values came, expected ", count_);
  }
  return writer_.finish();
}

}  // namespace driftless
