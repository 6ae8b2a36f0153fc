// SPDX-License-Identifier: Apache-2.0
#include "formats/bucket.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

namespace driftless {
namespace {

constexpr std::uint64_t kMaxInt32Units = std::uint64_t{1} << 31;

unsigned index_bytes(const TensorSpec& tensor) { return tensor.units() <= kMaxInt32Units ? 4 : 8; }

// The least width for gaps whose bits, taken together, are `bits`.
unsigned gap_bytes(std::uint64_t bits) {
  if (bits <= std::numeric_limits<std::uint16_t>::max()) return 2;
  return bits <= std::numeric_limits<std::uint32_t>::max() ? 4 : 8;
}

template <typename T>
void store(std::byte* out, std::size_t k, T value) {
  std::memcpy(out + k * sizeof(T), &value, sizeof(T));
}

struct OffsetScan {
  std::uint32_t gap_bits = 0;  // all gaps after the first, or-ed
  std::uint32_t disorder = 0;  // not 0 where offsets do not ascend
};

// Writes the gaps before offsets[1], offsets[2], ... behind the place of the first gap, cut to T.
// Whether they fit is told afterwards, so that the loop has no branch.
template <typename T>
OffsetScan write_gaps(std::span<const std::uint32_t> offsets, std::byte* __restrict out) {
  OffsetScan scan;
  const std::uint32_t* __restrict const at = offsets.data();
  const std::size_t count = offsets.size();
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint32_t gap = at[k] - at[k - 1] - 1;
    scan.gap_bits |= gap;
    scan.disorder |= static_cast<std::uint32_t>(at[k] <= at[k - 1]);
    store(out, k, static_cast<T>(gap));
  }
  return scan;
}

// Returns whether the offsets ascend.
template <typename T>
bool write_indices(std::span<const std::uint32_t> offsets, std::uint64_t origin,
                   std::byte* __restrict out) {
  const std::uint32_t* __restrict const at = offsets.data();
  const std::size_t count = offsets.size();
  const T base = static_cast<T>(origin);
  std::uint32_t disorder = 0;
  store(out, 0, static_cast<T>(base + at[0]));
  for (std::size_t k = 1; k < count; ++k) {
    disorder |= static_cast<std::uint32_t>(at[k] <= at[k - 1]);
    store(out, k, static_cast<T>(base + at[k]));
  }
  return disorder == 0;
}

template <typename From, typename To>
void widen_in_place(std::byte* data, std::uint64_t count) {
  for (std::uint64_t k = count;
       k-- > 0;) {  // from the end: a wide gap covers only narrow ones read
    From gap;
    std::memcpy(&gap, data + k * sizeof(From), sizeof(From));
    store(data, k, To{gap});
  }
}

Status disordered(const TensorSpec& tensor) {
  return error(StatusCode::kInvalidArgument, "tensor '", tensor.name,
               "': the positions of a delta do not ascend");
}

Status no_memory(std::uint64_t bytes) {
  return error(StatusCode::kNoSpace, "no memory for a bucket of more than ", bytes, " bytes");
}

}  // namespace

BucketBuilder::BucketBuilder(const WeightLayout& layout, Encoding encoding)
    : layout_(&layout),
      coding_(encoding == Encoding::kIndices ? Encoding::kIndices : Encoding::kDeltas),
      bucket_(layout.size(), 0) {}

bool BucketBuilder::accepts(const DeltaView& delta) const {
  return delta.tensor < layout_->size() &&
         (entries_.empty() || (*layout_)[delta.tensor].dtype == dtype_);
}

bool BucketBuilder::extends_last(const DeltaView& delta) const {
  return !entries_.empty() && entries_.back().tensor == delta.tensor;
}

Status BucketBuilder::check(const DeltaView& delta) const {
  if (delta.tensor >= layout_->size()) {
    return error(StatusCode::kInvalidArgument, "tensor ", delta.tensor, " of a layout of ",
                 layout_->size());
  }
  const TensorSpec& tensor = (*layout_)[delta.tensor];
  if (!accepts(delta)) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name, "' is ",
                 info(tensor.dtype).name, ", the bucket holds ", info(dtype_).name);
  }
  if (delta.unit_bytes != unit_bytes(tensor.dtype)) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name, "': units of ",
                 delta.unit_bytes, " bytes, expected ", unit_bytes(tensor.dtype));
  }
  if (delta.origin >= tensor.units() || delta.offsets.back() >= tensor.units() - delta.origin) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name, "': position ",
                 delta.origin, " + ", delta.offsets.back(), " is not below ", tensor.units());
  }
  if (extends_last(delta)) {
    return delta.origin + delta.offsets.front() < next_position_ ? disordered(tensor) : Status();
  }
  if (bucket_[delta.tensor] == bucket_number_) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name,
                 "' comes twice in a bucket, with others between");
  }
  return {};
}

Status BucketBuilder::add(const DeltaView& delta) {
  if (delta.offsets.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(check(delta));
  const TensorSpec& tensor = (*layout_)[delta.tensor];
  const std::size_t positions_before = positions_.size();
  const std::size_t values_before = values_.size();
  const std::uint64_t value_units = values_before / delta.unit_bytes;

  BucketEntry entry{delta.tensor,     coding_ == Encoding::kIndices ? index_bytes(tensor) : 2,
                    positions_before, positions_before,
                    value_units,      value_units};
  const bool extends = extends_last(delta);
  if (extends) entry = entries_.back();
  if (!extends) next_position_ = 0;

  const std::span<const std::byte> new_values = delta.value_bytes();
  std::byte* const values = values_.extend(new_values.size());
  if (values == nullptr) return no_memory(size_bytes() + new_values.size());
  std::memcpy(values, new_values.data(), new_values.size());
  if (Status status = append_positions(delta, entry); !status.ok()) {
    values_.shrink(values_before);
    positions_.shrink(positions_before);
    return status;
  }
  entry.position_end = positions_.size();
  entry.value_end += delta.count();
  next_position_ = delta.origin + delta.offsets.back() + 1;
  dtype_ = tensor.dtype;
  bucket_[delta.tensor] = bucket_number_;
  if (extends) {
    entries_.back() = entry;
  } else {
    entries_.push_back(entry);
  }
  return {};
}

Status BucketBuilder::append_positions(const DeltaView& delta, BucketEntry& entry) {
  if (coding_ == Encoding::kDeltas) return append_gaps(delta, entry);
  std::byte* const out = positions_.extend(delta.count() * entry.position_bytes);
  if (out == nullptr) return no_memory(size_bytes());
  const bool ascend = entry.position_bytes == 4
                          ? write_indices<std::uint32_t>(delta.offsets, delta.origin, out)
                          : write_indices<std::uint64_t>(delta.offsets, delta.origin, out);
  return ascend ? Status() : disordered((*layout_)[delta.tensor]);
}

Status BucketBuilder::append_gaps(const DeltaView& delta, BucketEntry& entry) {
  const std::uint64_t first_gap = delta.origin + delta.offsets.front() - next_position_;
  while (true) {
    const unsigned width = entry.position_bytes;
    std::byte* const out = positions_.extend(delta.count() * width);
    if (out == nullptr) return no_memory(size_bytes());
    OffsetScan scan;
    if (width == 2) {
      store(out, 0, static_cast<std::uint16_t>(first_gap));
      scan = write_gaps<std::uint16_t>(delta.offsets, out);
    } else if (width == 4) {
      store(out, 0, static_cast<std::uint32_t>(first_gap));
      scan = write_gaps<std::uint32_t>(delta.offsets, out);
    } else {
      store(out, 0, first_gap);
      scan = write_gaps<std::uint64_t>(delta.offsets, out);
    }
    if (scan.disorder != 0) return disordered((*layout_)[delta.tensor]);
    const unsigned needed = gap_bytes(first_gap | scan.gap_bits);
    if (needed <= width) return {};
    positions_.shrink(entry.position_end);
    if (!positions_.reserve((entry.count() + delta.count()) * needed)) {
      return no_memory(size_bytes());
    }
    widen(entry, needed);
  }
}

// The entry is the last one, and room for it is reserved.
void BucketBuilder::widen(BucketEntry& entry, unsigned position_bytes) {
  const std::uint64_t count = entry.count();
  const std::uint64_t more = count * (position_bytes - entry.position_bytes);
  std::ignore = positions_.extend(more);
  std::byte* const data = positions_.data() + entry.position_begin;
  if (entry.position_bytes == 4) {
    widen_in_place<std::uint32_t, std::uint64_t>(data, count);
  } else if (position_bytes == 4) {
    widen_in_place<std::uint16_t, std::uint32_t>(data, count);
  } else {
    widen_in_place<std::uint16_t, std::uint64_t>(data, count);
  }
  entry.position_bytes = position_bytes;
  entry.position_end += more;
}

BucketView BucketBuilder::view() const {
  return {coding_, dtype_, entries_, positions_.bytes(), values_.bytes()};
}

void BucketBuilder::clear() {
  entries_.clear();
  positions_.shrink(0);
  values_.shrink(0);
  next_position_ = 0;
  if (++bucket_number_ == 0) {  // after 2^32 buckets the old numbers mean nothing
    std::fill(bucket_.begin(), bucket_.end(), 0);
    bucket_number_ = 1;
  }
}

}  // namespace driftless
