// SPDX-License-Identifier: Apache-2.0
#include "formats/bucket.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>

namespace driftless {
namespace {

constexpr std::uint64_t kMaxInt32Units = std::uint64_t{1} << 31;

unsigned index_bytes(std::uint64_t units) { return units <= kMaxInt32Units ? 4 : 8; }

std::uint64_t units_of(const TensorSpec& tensor, const TensorBlock* block) {
  return block == nullptr ? tensor.units() : block->place.units;
}

// The name in messages.
std::string name_of(const TensorSpec& tensor, const TensorBlock* block) {
  return concat("tensor '", tensor.name, "'",
                block == nullptr ? std::string() : concat(" ", block->box.to_string()));
}

// The least width for gaps whose bits, or-ed together, are `bits`.
unsigned gap_bytes(std::uint64_t bits) {
  if (bits <= std::numeric_limits<std::uint16_t>::max()) return 2;
  return bits <= std::numeric_limits<std::uint32_t>::max() ? 4 : 8;
}

template <typename T>
T load(const std::byte* from, std::size_t k) {
  T value;
  std::memcpy(&value, from + k * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* out, std::size_t k, T value) {
  std::memcpy(out + k * sizeof(T), &value, sizeof(T));
}

struct OffsetScan {
  std::uint32_t gap_bits = 0;  // all gaps after the first, or-ed together
  std::uint32_t disorder = 0;  // not 0 if offsets do not ascend
};

// Writes the gap before offsets[0], which is `first`, and the gaps before the others, truncated to
// T. The result shows afterwards whether they fit, so the loop has no branch.
template <typename T>
OffsetScan write_gaps(std::span<const std::uint32_t> offsets, std::uint64_t first,
                      std::byte* __restrict out) {
  OffsetScan scan;
  store(out, 0, static_cast<T>(first));
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
       k-- > 0;) {  // backwards: a wide gap overwrites only narrow ones already read
    store(data, k, To{load<From>(data, k)});
  }
}

Status disordered(const TensorSpec& tensor) {
  return error(StatusCode::kInvalidArgument, "tensor '", tensor.name,
               "': the positions of a delta do not ascend");
}

Status no_memory(std::uint64_t bytes) {
  return error(StatusCode::kNoSpace, "no memory for a bucket of more than ", bytes, " bytes");
}

constexpr std::size_t kPieceUnits = 16384;
// Offsets of a DeltaView stay below this.
constexpr std::uint64_t kOffsetLimit = std::numeric_limits<std::uint32_t>::max();

Status check_width(const TensorSpec& tensor, std::uint64_t units, Encoding coding,
                   unsigned position_bytes) {
  if (coding == Encoding::kIndices) {
    const unsigned expected = index_bytes(units);
    if (position_bytes == expected) return {};
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': indices of ", position_bytes,
                 " bytes, expected ", expected, " for ", units, " units");
  }
  if (position_bytes == 2 || position_bytes == 4 || position_bytes == 8) return {};
  return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': gaps of ", position_bytes,
               " bytes, expected 2, 4 or 8");
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

bool BucketBuilder::extends_last(const DeltaView& delta, const TensorBlock* block) const {
  return !entries_.empty() && entries_.back().tensor == delta.tensor &&
         entries_.back().block == block;
}

std::uint64_t BucketBuilder::gap_before(const DeltaView& delta, const TensorBlock* block) const {
  return delta.origin + delta.offsets.front() - (extends_last(delta, block) ? next_position_ : 0);
}

Status BucketBuilder::check(const DeltaView& delta, const TensorBlock* block) const {
  if (delta.tensor >= layout_->size()) {
    return error(StatusCode::kInvalidArgument, "tensor ", delta.tensor, " is not below ",
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
  const std::uint64_t units = units_of(tensor, block);
  if (delta.origin >= units || delta.offsets.back() >= units - delta.origin) {
    return error(StatusCode::kInvalidArgument, name_of(tensor, block), ": position ", delta.origin,
                 " + ", delta.offsets.back(), " is not below ", units);
  }
  if (extends_last(delta, block)) {
    return delta.origin + delta.offsets.front() < next_position_ ? disordered(tensor) : Status();
  }
  if (block == nullptr && bucket_[delta.tensor] == bucket_number_) {
    return error(StatusCode::kInvalidArgument, "tensor '", tensor.name,
                 "' comes twice in a bucket, with others between");
  }
  return {};
}

Status BucketBuilder::add(const DeltaView& delta, const TensorBlock* block) {
  if (delta.offsets.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(check(delta, block));
  const TensorSpec& tensor = (*layout_)[delta.tensor];
  const std::size_t positions_before = positions_.size();
  const std::size_t values_before = values_.size();
  const std::uint64_t value_units = values_before / delta.unit_bytes;

  const unsigned width = coding_ == Encoding::kIndices ? index_bytes(units_of(tensor, block)) : 2;
  BucketEntry entry{delta.tensor, width, positions_before, positions_before, value_units,
                    value_units,  block};
  const bool extends = extends_last(delta, block);
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
  if (block == nullptr) bucket_[delta.tensor] = bucket_number_;
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
    const OffsetScan scan = width == 2   ? write_gaps<std::uint16_t>(delta.offsets, first_gap, out)
                            : width == 4 ? write_gaps<std::uint32_t>(delta.offsets, first_gap, out)
                                         : write_gaps<std::uint64_t>(delta.offsets, first_gap, out);
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

// The entry must be the last one, with memory reserved for it.
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
  if (++bucket_number_ == 0) {  // after 2^32 buckets old numbers are ambiguous
    std::fill(bucket_.begin(), bucket_.end(), 0);
    bucket_number_ = 1;
  }
}

// Checks of buckets from outside.

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
  if (entry.block != nullptr && entry.block->tensor != entry.tensor) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': a block of tensor ",
                 entry.block->tensor);
  }
  const std::uint64_t units = units_of(tensor, entry.block);
  DRIFTLESS_RETURN_IF_ERROR(check_width(tensor, units, bucket.coding, entry.position_bytes));
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
                 " bytes in positions of ", entry.position_bytes, " bytes, but ", entry.count(),
                 " values");
  }
  if (entry.count() > units) {
    return error(StatusCode::kCorrupt, name_of(tensor, entry.block), ": ", entry.count(),
                 " changes, but it has only ", units, " units");
  }
  return {};
}

namespace {

// Checks whether another entry overlaps an earlier one of the same tensor.
class SeenBlocks {
 public:
  explicit SeenBlocks(const WeightLayout& layout) : layout_(layout), whole_(layout.size(), false) {}

  Status add(const BucketEntry& entry) {
    const TensorSpec& tensor = layout_[entry.tensor];
    if (whole_[entry.tensor] || (entry.block == nullptr && cut_.contains(entry.tensor))) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "' appears twice in one bucket");
    }
    whole_[entry.tensor] = entry.block == nullptr;
    if (entry.block == nullptr) return {};
    std::vector<const TensorBlock*>& cut = cut_[entry.tensor];
    if (cut.size() == kMaxBlocksOfTensor) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': more than ",
                   kMaxBlocksOfTensor, " blocks in one bucket");
    }
    for (const TensorBlock* const other : cut) {
      if (!overlap(other->box, entry.block->box)) continue;
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': blocks ",
                   other->box.to_string(), " and ", entry.block->box.to_string(), " overlap");
    }
    cut.push_back(entry.block);
    return {};
  }

 private:
  const WeightLayout& layout_;
  std::vector<bool> whole_;
  std::map<std::uint32_t, std::vector<const TensorBlock*>> cut_;
};

}  // namespace

Status check_apart(const WeightLayout& layout, std::span<const BucketEntry> entries, bool runs) {
  SeenBlocks seen(layout);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool goes_on = runs && i > 0 && entries[i].tensor == entries[i - 1].tensor &&
                         entries[i].block == entries[i - 1].block;
    if (!goes_on) DRIFTLESS_RETURN_IF_ERROR(seen.add(entries[i]));
  }
  return {};
}

Status check_bucket(const WeightLayout& layout, const BucketShape& bucket) {
  if (bucket.coding != Encoding::kIndices && bucket.coding != Encoding::kDeltas) {
    return error(StatusCode::kCorrupt, "a bucket cannot be coded as '", info(bucket.coding).name,
                 "'");
  }
  std::uint64_t position_end = 0, value_end = 0;
  for (const BucketEntry& entry : bucket.entries) {
    DRIFTLESS_RETURN_IF_ERROR(check_entry(layout, bucket, entry));
    const std::string_view name = layout[entry.tensor].name;
    if (entry.count() == 0) {
      return error(StatusCode::kCorrupt, "tensor '", name, "': an entry without changes");
    }
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
    return error(StatusCode::kCorrupt, "the entries have ", position_end, " position bytes of ",
                 bucket.positions_bytes, ", and ", value_end, " values in ", bucket.values_bytes,
                 " bytes");
  }
  return check_apart(layout, bucket.entries, false);
}

EntryCursor::EntryCursor(const WeightLayout& layout, const BucketView& bucket,
                         const BucketEntry& entry)
    : layout_(&layout),
      bucket_(bucket),
      entry_(entry),
      units_(units_of(layout[entry.tensor], entry.block)) {}

// A decoder relies on next_position_ <= units_ < 2^63, and checks only the last decoded position:
// positions grow, so all others are below it.
template <typename T>
std::size_t EntryCursor::decode_gaps(std::size_t wanted, std::uint64_t& origin) {
  const std::byte* const gaps =
      bucket_.positions.data() + entry_.position_begin + done_ * sizeof(T);
  const std::uint64_t units = units_;
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
  // A position too far for this piece starts the next one, which checks it against the end.
  return offsets_[k - 1] < limit ? k : 0;
}

template <typename T>
std::size_t EntryCursor::decode_indices(std::size_t wanted, std::uint64_t& origin) {
  const std::byte* const indices =
      bucket_.positions.data() + entry_.position_begin + done_ * sizeof(T);
  const std::uint64_t units = units_;
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
  std::size_t got = decode(wanted, piece.origin);
  if (got == 0) {
    return error(StatusCode::kCorrupt, name_of((*layout_)[entry_.tensor], entry_.block),
                 ": positions ", done_, " to ", done_ + wanted, " of ", entry_.count(),
                 " do not ascend, or do not stay below ", units_);
  }
  if (entry_.block == nullptr) {
    next_position_ = piece.origin + offsets_[got - 1] + 1;
  } else {
    got = place(got, piece.origin);
  }
  piece.offsets = std::span(offsets_).first(got);
  piece.values = bucket_.values.data() + (entry_.value_begin + done_) * unit;
  done_ += got;
  return piece;
}

std::size_t EntryCursor::place(std::size_t count, std::uint64_t& origin) {
  const BlockPlace& place = entry_.block->place;
  const std::uint64_t inside = origin;  // origin within the block
  if (place.contiguous()) {
    next_position_ = inside + offsets_[count - 1] + 1;
    origin += place.first;
    return count;
  }
  origin = place.at(inside + offsets_[0]);
  std::uint64_t run_end = 0, shift = 0;  // of the run that contains the position
  std::size_t k = 0;
  for (; k < count; ++k) {
    const std::uint64_t position = inside + offsets_[k];
    if (position >= run_end) {
      const std::uint64_t run = position / place.run;
      run_end = (run + 1) * place.run;
      shift = place.run_begin(run) - run * place.run - origin;
    }
    if (position + shift >= kOffsetLimit) break;
    next_position_ = position + 1;
    offsets_[k] = static_cast<std::uint32_t>(position + shift);
  }
  return k;
}

}  // namespace driftless
