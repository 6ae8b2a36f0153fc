// SPDX-License-Identifier: Apache-2.0
// The gate for buckets from outside: check_bucket, check_entry, EntryCursor.
#include <algorithm>
#include <cstring>
#include <limits>

#include "formats/bucket.h"

namespace driftless {
namespace {

constexpr std::size_t kPieceUnits = 16384;
constexpr std::uint64_t kMaxInt32Positions = std::uint64_t{1} << 31;
// Offsets of a DeltaView stay below this.
constexpr std::uint64_t kOffsetLimit = std::numeric_limits<std::uint32_t>::max();

template <typename T>
T load(const std::byte* from, std::size_t k) {
  T value;
  std::memcpy(&value, from + k * sizeof(T), sizeof(T));
  return value;
}

Status check_width(const TensorSpec& tensor, Encoding coding, unsigned position_bytes) {
  if (coding == Encoding::kIndices) {
    const unsigned expected = tensor.units() <= kMaxInt32Positions ? 4 : 8;
    if (position_bytes == expected) return {};
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': indices of ", position_bytes,
                 " bytes, expected ", expected, " for ", tensor.units(), " units");
  }
  if (position_bytes == 2 || position_bytes == 4 || position_bytes == 8) return {};
  return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': gaps of ", position_bytes,
               " bytes, expected 2, 4 or 8");
}

}  // namespace

Status check_entry(const WeightLayout& layout, const BucketShape& bucket,
                   const BucketEntry& entry) {
  if (entry.tensor >= layout.size()) {
    return error(StatusCode::kCorrupt, "an entry is for tensor ", entry.tensor, ", the layout has ",
                 layout.size());
  }
  const TensorSpec& tensor = layout[entry.tensor];
  if (tensor.dtype != bucket.dtype) {
    return error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is ",
                 info(tensor.dtype).name, ", the bucket holds ", info(bucket.dtype).name);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_width(tensor, bucket.coding, entry.position_bytes));
  const std::uint64_t value_units = bucket.values_bytes / unit_bytes(bucket.dtype);
  if (entry.value_begin > entry.value_end || entry.value_end > value_units ||
      entry.position_begin > entry.position_end || entry.position_end > bucket.positions_bytes) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': values [", entry.value_begin,
                 ", ", entry.value_end, ") of ", value_units, " and positions [",
                 entry.position_begin, ", ", entry.position_end, ") of ", bucket.positions_bytes,
                 " bytes are not within the streams");
  }
  const std::uint64_t position_bytes = entry.position_end - entry.position_begin;
  if (position_bytes / entry.position_bytes != entry.count() ||
      position_bytes % entry.position_bytes != 0) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': ", position_bytes,
                 " bytes of positions of ", entry.position_bytes, " bytes for ", entry.count(),
                 " values");
  }
  if (entry.count() > tensor.units()) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': ", entry.count(),
                 " changes, but it has only ", tensor.units(), " units");
  }
  return {};
}

Status check_bucket(const WeightLayout& layout, const BucketShape& bucket) {
  if (bucket.coding != Encoding::kIndices && bucket.coding != Encoding::kDeltas) {
    return error(StatusCode::kCorrupt, "a bucket cannot be coded as '", info(bucket.coding).name,
                 "'");
  }
  std::vector<bool> seen(layout.size(), false);
  std::uint64_t position_end = 0, value_end = 0;
  for (const BucketEntry& entry : bucket.entries) {
    DRIFTLESS_RETURN_IF_ERROR(check_entry(layout, bucket, entry));
    const std::string_view name = layout[entry.tensor].name;
    if (entry.count() == 0) {
      return error(StatusCode::kCorrupt, "tensor '", name, "': an entry without changes");
    }
    if (seen[entry.tensor]) {
      return error(StatusCode::kCorrupt, "tensor '", name, "' is there twice in one bucket");
    }
    seen[entry.tensor] = true;
    if (entry.position_begin != position_end || entry.value_begin != value_end) {
      return error(StatusCode::kCorrupt, "tensor '", name, "': positions begin at byte ",
                   entry.position_begin, " and values at ", entry.value_begin, ", expected ",
                   position_end, " and ", value_end);
    }
    position_end = entry.position_end;
    value_end = entry.value_end;
  }
  if (position_end != bucket.positions_bytes ||
      value_end * unit_bytes(bucket.dtype) != bucket.values_bytes) {
    return error(StatusCode::kCorrupt, "the entries use ", position_end, " bytes of positions of ",
                 bucket.positions_bytes, " and ", value_end, " values of ", bucket.values_bytes,
                 " bytes");
  }
  return {};
}

EntryCursor::EntryCursor(const WeightLayout& layout, const BucketView& bucket,
                         const BucketEntry& entry)
    : layout_(&layout), bucket_(bucket), entry_(entry) {}

// A decoder relies on next_position_ <= units() < 2^63 and checks the last position of what it
// decoded: positions only grow, so all others lie below.
template <typename T>
std::size_t EntryCursor::decode_gaps(std::size_t wanted, std::uint64_t& origin) {
  const std::byte* const gaps =
      bucket_.positions.data() + entry_.position_begin + done_ * sizeof(T);
  const std::uint64_t units = (*layout_)[entry_.tensor].units();
  const auto first_gap = std::uint64_t{load<T>(gaps, 0)};
  if (first_gap >= units - next_position_) return 0;
  origin = next_position_ + first_gap;
  const std::uint64_t limit = std::min(units - origin, kOffsetLimit);
  std::uint64_t offset = 0;
  std::size_t k = 1;
  offsets_[0] = 0;
  for (; k < wanted; ++k) {
    const auto gap = std::uint64_t{load<T>(gaps, k)};
    // Only 64-bit gaps can overflow the sum.
    if (sizeof(T) == 8 && gap >= limit) break;
    offset += gap + 1;
    if (sizeof(T) > 2 && offset >= limit) break;
    offsets_[k] = static_cast<std::uint32_t>(offset);
  }
  // What is too far for this piece starts the next one, where it is checked against the end.
  return offsets_[k - 1] < limit ? k : 0;
}

template <typename T>
std::size_t EntryCursor::decode_indices(std::size_t wanted, std::uint64_t& origin) {
  const std::byte* const indices =
      bucket_.positions.data() + entry_.position_begin + done_ * sizeof(T);
  const std::uint64_t units = (*layout_)[entry_.tensor].units();
  origin = load<T>(indices, 0);
  if (origin < next_position_ || origin >= units) return 0;
  // An index below the origin wraps to a large offset: it is either out of order or past the end.
  const std::uint64_t limit = std::min(units - origin, kOffsetLimit);
  const T base = static_cast<T>(origin);
  std::uint32_t disorder = 0;
  std::size_t k = 1;
  offsets_[0] = 0;
  for (; k < wanted; ++k) {
    const T index = load<T>(indices, k);
    const T offset = index - base;
    if (sizeof(T) == 8 && offset >= limit) break;
    disorder |= static_cast<std::uint32_t>(index <= load<T>(indices, k - 1));
    offsets_[k] = static_cast<std::uint32_t>(offset);
  }
  return disorder == 0 && offsets_[k - 1] < limit ? k : 0;
}

std::size_t EntryCursor::decode(std::size_t wanted, std::uint64_t& origin) {
  if (bucket_.coding == Encoding::kIndices) {
    return entry_.position_bytes == 4 ? decode_indices<std::uint32_t>(wanted, origin)
                                      : decode_indices<std::uint64_t>(wanted, origin);
  }
  if (entry_.position_bytes == 2) return decode_gaps<std::uint16_t>(wanted, origin);
  if (entry_.position_bytes == 4) return decode_gaps<std::uint32_t>(wanted, origin);
  return decode_gaps<std::uint64_t>(wanted, origin);
}

Result<DeltaView> EntryCursor::next() {
  const unsigned unit = unit_bytes(bucket_.dtype);
  DeltaView piece;
  piece.tensor = entry_.tensor;
  piece.unit_bytes = unit;
  piece.origin = next_position_;
  const std::size_t wanted = std::min<std::uint64_t>(entry_.count() - done_, kPieceUnits);
  if (wanted == 0) return piece;
  if (offsets_.size() < wanted) offsets_.resize(wanted);
  const std::size_t got = decode(wanted, piece.origin);
  if (got == 0) {
    const TensorSpec& tensor = (*layout_)[entry_.tensor];
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': positions ", done_, " to ",
                 done_ + wanted, " of ", entry_.count(), " do not ascend, or do not stay below ",
                 tensor.units());
  }
  piece.offsets = std::span(offsets_).first(got);
  piece.values = bucket_.values.data() + (entry_.value_begin + done_) * unit;
  done_ += got;
  next_position_ = piece.origin + offsets_[got - 1] + 1;
  return piece;
}

}  // namespace driftless
