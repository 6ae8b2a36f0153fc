// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/change_capture.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kLeastLimit = std::uint64_t{1} << 20;  // for small weights

}  // namespace

Status moved_error(std::string_view tensor) {
  return error(StatusCode::kInvalidArgument, "tensor '", tensor,
               "' does not lie where it lay when the publisher was opened: without a snapshot the "
               "weights must be updated in place, and be offered themselves, not as copies; open "
               "the publisher anew, or keep a snapshot");
}

ChangeCapture::ChangeCapture(WeightStore& weights, PublisherDevice* device,
                             std::uint64_t limit_bytes, unsigned threads)
    : weights_(weights), device_(device), threads_(threads), rounded_(weights.owned().size()) {
  std::uint64_t all = kLeastLimit;
  for (std::uint32_t i = 0; i < weights.owned().size(); ++i) all += weights.size_bytes(i);
  limit_bytes_ = std::min(limit_bytes, all);  // above this a full version is smaller
  fresh_ = empty_store();
}

ChangeStore ChangeCapture::empty_store() const {
  std::vector<ChangeStore::Block> blocks;
  for (std::uint32_t i = 0; i < weights_.owned().size(); ++i) {
    blocks.push_back({weights_.owned(i).place().units, unit_bytes(weights_.spec(i).dtype)});
  }
  return {blocks, limit_bytes_};
}

Status ChangeCapture::check(std::uint32_t number, const std::byte* data) const {
  if (data == places_[number].data || weights_.size_bytes(number) == 0) return {};
  return moved_error(weights_.spec(number).name);
}

Status ChangeCapture::compare(std::span<const TensorPair> pairs, void* stream) {
  if (on_gpu()) {
    return device_->capture(pairs, limit_bytes_, stream);
  }
  DiffOptions options;
  options.threads = threads_;
  options.piece_bytes = ChangeStore::kPieceBytes;
  options.old_values = true;
  const Status done = diff_tensors(
      host_kernels(), pairs, options,
      [this](const DiffPiece& piece) {
        fresh_.add(piece.delta, piece.old_values);
        const std::uint32_t number = piece.delta.tensor;
        if (unknown_bits(number, piece.delta.value_bytes())) fresh_.mark_whole(number);
        return Status();
      },
      [](const DiffPiece&) { return Status(); });
  fresh_.release_whole();
  return done;
}

// If torch writes a NaN, its bits depend on the processor and on the tensor's strides. A block with
// a NaN is therefore read after it was written.
bool ChangeCapture::unknown_bits(std::uint32_t number, std::span<const std::byte> values) const {
  if (!rounded_[number]) return false;
  const DType dtype = weights_.spec(number).dtype;
  for (std::size_t at = 0; at < values.size(); at += sizeof(std::uint16_t)) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, values.data() + at, sizeof(bits));
    if (is_nan_16(dtype, bits)) return true;
  }
  return false;
}

Status ChangeCapture::capture(std::span<const NewValues> blocks, void* stream) {
  std::vector<TensorPair> pairs;
  for (const NewValues& block : blocks) {
    if (places_[block.number].watched) continue;  // publish() compares it
    if (block.memory != weights_.memory_kind() && weights_.size_bytes(block.number) > 0) {
      return error(StatusCode::kInvalidArgument, "tensor '", weights_.spec(block.number).name,
                   "' and its new values must lie in the same memory, host or GPU");
    }
    if (block.cast != ValueCast::kNone) rounded_[block.number] = true;
    pairs.push_back({block.number, unit_bytes(weights_.spec(block.number).dtype),
                     weights_.owned(block.number).place().units, places_[block.number].data,
                     block.data, block.cast});
  }
  return compare(pairs, stream);
}

Status ChangeCapture::watch(void* stream) {
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].watched) continue;
    pairs.push_back({i, unit_bytes(weights_.spec(i).dtype), weights_.owned(i).place().units,
                     weights_.data(i), places_[i].data});
  }
  if (pairs.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(compare(pairs, stream));
  for (const TensorPair& pair : pairs) {
    DRIFTLESS_RETURN_IF_ERROR(
        on_gpu() ? device_->copy_on_stream(weights_.data(pair.tensor), pair.new_data,
                                           weights_.size_bytes(pair.tensor), stream)
                 : weights_.write(pair.tensor, pair.new_data));
  }
  return {};
}

Status ChangeCapture::fetch() {
  if (!on_gpu()) return {};
  const auto missing = device_->fetch_captured(
      threads_, [this](std::uint32_t number, std::uint64_t piece, PieceChanges& changes) {
        if (unknown_bits(number, changes.values)) fresh_.mark_whole(number);
        fresh_.exchange(number, piece, changes);
      });
  for (std::size_t i = 0; missing.ok() && i < missing->size(); ++i) {
    fresh_.mark_whole((*missing)[i]);
  }
  fresh_.release_whole();
  return missing.status();
}

}  // namespace driftless
