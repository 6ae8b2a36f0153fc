// SPDX-License-Identifier: Apache-2.0
// The arithmetic of `compact` (docs/formats/compact.md), for files that code tiles; other files
// include host_kernels.h. The sums of hazards are not computed here: each implementation has its
// own code for them. Functions are constexpr so that GPU kernels can call them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/compact.h"

namespace driftless::compact {

// --- rANS with a state of 32 bits and output in bytes.
inline constexpr unsigned kScaleBits = 20;  // of gaps
inline constexpr std::uint32_t kLowState = std::uint32_t{1} << 24;
inline constexpr unsigned kMaxRawBits = 16;  // in one push

// Sink: put(byte) receives the bytes of the stream, the last one first.
template <typename Sink>
class BasicEncoder {
 public:
  constexpr explicit BasicEncoder(const Sink& sink) : sink_(sink) {}

  constexpr void put(std::uint32_t start, std::uint32_t weight, unsigned scale_bits) {
    const std::uint64_t limit = std::uint64_t{weight} << (32 - scale_bits);
    while (state_ >= limit) shift_out();
    state_ = ((state_ / weight) << scale_bits) + state_ % weight + start;
  }
  constexpr void put_bits(std::uint32_t bits, unsigned count) {
    while (count > kMaxRawBits) {  // the decoder reads the low bits last
      put_some(bits & 0xffffU, kMaxRawBits);
      bits >>= kMaxRawBits;
      count -= kMaxRawBits;
    }
    put_some(bits, count);
  }
  [[nodiscard]] constexpr const Sink& finish() {
    for (unsigned i = 0; i < 4; ++i) shift_out();
    return sink_;
  }

 private:
  constexpr void put_some(std::uint32_t bits, unsigned count) {
    while (std::uint64_t{state_} >= std::uint64_t{1} << (32 - count)) shift_out();
    state_ = (state_ << count) | bits;
  }
  constexpr void shift_out() {
    sink_.put(static_cast<std::byte>(state_));
    state_ >>= 8;
  }
  Sink sink_;
  std::uint32_t state_ = kLowState;
};

// Writes backwards from the end of a buffer.
struct BackwardBytes {
  std::byte* at;
  constexpr void put(std::byte byte) { *--at = byte; }
};
class Encoder : public BasicEncoder<BackwardBytes> {
 public:
  explicit Encoder(std::byte* end) : BasicEncoder(BackwardBytes{end}), end_(end) {}
  // Moves the stream to `begin`; returns its size in bytes.
  [[nodiscard]] std::uint32_t finish_at(std::byte* begin) {
    const std::byte* const first = finish().at;
    const auto size = static_cast<std::uint32_t>(end_ - first);
    std::memmove(begin, first, size);
    return size;
  }

 private:
  const std::byte* end_;
};

// Bytes has shift_in(state, count), which shifts the next `count` <= 3 bytes into a state of 32
// bits, or zeros after the end; good(), whether no such zeros were needed; and empty(), whether no
// bytes are left.
template <typename Bytes>
class BasicDecoder {
 public:
  constexpr explicit BasicDecoder(const Bytes& bytes) : bytes_(bytes) {
    for (unsigned i = 0; i < 4; ++i) state_ = bytes_.shift_in(state_, 1);
    begun_ = state_ >= kLowState;
  }

  // The place of the next symbol: a number below 2^scale_bits.
  [[nodiscard]] constexpr std::uint32_t peek(unsigned scale_bits) const {
    return state_ & ((std::uint32_t{1} << scale_bits) - 1);
  }
  // Consumes a symbol. `place` is the result of peek(), and in [start, start + weight).
  constexpr void skip(std::uint32_t place, std::uint32_t start, std::uint32_t weight,
                      unsigned scale_bits) {
    state_ = weight * (state_ >> scale_bits) + place - start;
    refill();
  }
  [[nodiscard]] constexpr std::uint32_t bits(unsigned count) {
    std::uint32_t bits = 0;
    for (; count != 0;) {
      const unsigned some = count % kMaxRawBits != 0 ? count % kMaxRawBits : kMaxRawBits;
      bits = (bits << some) | peek(some);
      state_ >>= some;
      refill();
      count -= some;
    }
    return bits;
  }
  // False after a read past the end.
  [[nodiscard]] constexpr bool good() const { return begun_ && bytes_.good(); }
  // Whether everything was read, and the final state is right.
  [[nodiscard]] constexpr bool finished() const {
    return good() && bytes_.empty() && state_ == kLowState;
  }

 private:
  constexpr void refill() {
    state_ = bytes_.shift_in(state_, static_cast<unsigned>(std::countl_zero(state_ | 1)) / 8);
  }
  Bytes bytes_;
  std::uint32_t state_ = 0;
  bool begun_ = false;
};

class HostBytes {
 public:
  HostBytes(const std::byte* begin, const std::byte* end) : at_(begin), end_(end) {}

  [[nodiscard]] std::uint32_t shift_in(std::uint32_t state, unsigned count) {
    if (end_ - at_ >= 4) [[likely]] {
      std::uint32_t next;
      std::memcpy(&next, at_, sizeof(next));
      const std::uint64_t both = (std::uint64_t{state} << 32) | __builtin_bswap32(next);
      at_ += count;
      return static_cast<std::uint32_t>((both << (8 * count)) >> 32);
    }
    for (unsigned i = 0; i < count; ++i) {
      good_ = good_ && at_ != end_;
      state = (state << 8) | (at_ != end_ ? std::to_integer<std::uint32_t>(*at_++) : 0);
    }
    return state;
  }
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool empty() const { return at_ == end_; }

 private:
  const std::byte* at_;
  const std::byte* end_;
  bool good_ = true;
};

class Decoder : public BasicDecoder<HostBytes> {
 public:
  Decoder(const std::byte* begin, const std::byte* end) : BasicDecoder(HostBytes(begin, end)) {}
};

// --- Gaps. The hazards of the units lie end to end on an axis. A gap reaches from the end of one
// change's hazard to the beginning of the next one's; it is exponentially distributed, whatever the
// units are. A turn of the axis is 6 half-lives long and has 32 segments, each of constant slope. A
// gap that is longer than a turn has an escape, of 1/64 of the scale, for each turn that it skips.
inline constexpr std::uint32_t kTurn = 65536;
inline constexpr unsigned kSegmentBits = 11;
inline constexpr std::size_t kSegments = kTurn >> kSegmentBits;
inline constexpr std::uint8_t kSlopes[kSegments] = {62, 55, 48, 42, 37, 33, 29, 25, 22, 19, 17,
                                                    15, 13, 12, 10, 9,  8,  7,  6,  5,  5,  4,
                                                    4,  3,  3,  2,  2,  2,  2,  1,  1,  1};
inline constexpr std::uint32_t kEscapeStart = std::uint32_t{504} << kSegmentBits;
inline constexpr std::uint32_t kEscapeWeight = (std::uint32_t{1} << kScaleBits) - kEscapeStart;

struct Axis {
  struct Segment {
    std::uint32_t start, slope;
    std::uint64_t inverse;  // floor(x / slope) = (x * inverse) >> 32 for x below 2^17
  };
  Segment segments[kSegments + 1];
  std::uint8_t by_place[(1U << kScaleBits) >> kSegmentBits];  // kSegments: an escape

  // The share of the scale that lies before `at`; `at` is at most one turn.
  [[nodiscard]] constexpr std::uint32_t share_before(std::uint32_t at) const {
    const Segment& segment = segments[at >> kSegmentBits];
    return segment.start + segment.slope * (at & ((1U << kSegmentBits) - 1));
  }
  // The point to which a place below the scale belongs: share_before(point) <= place <
  // share_before(point + 1). One turn means an escape.
  [[nodiscard]] constexpr std::uint32_t point_at(std::uint32_t place) const {
    const std::uint32_t s = by_place[place >> kSegmentBits];
    const Segment& segment = segments[s];
    const auto inside =
        static_cast<std::uint32_t>(((place - segment.start) * segment.inverse) >> 32);
    return (s << kSegmentBits) + inside;
  }
};
constexpr Axis make_axis() {
  Axis axis{};
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kSegments; ++s) {
    const std::uint32_t slope = kSlopes[s];
    axis.segments[s] = {sum << kSegmentBits, slope, (std::uint64_t{1} << 32) / slope + 1};
    for (std::uint32_t i = 0; i < slope; ++i) axis.by_place[sum++] = static_cast<std::uint8_t>(s);
  }
  axis.segments[kSegments] = {sum << kSegmentBits, 0, 0};
  for (; sum < sizeof(axis.by_place); ++sum) axis.by_place[sum] = kSegments;
  return axis;
}
inline constexpr Axis kAxis = make_axis();
static_assert(kAxis.segments[kSegments].start == kEscapeStart);

// `gap` is the gap before the change, `hazard` the hazard of the changed unit; not 0.
template <typename Coder>
constexpr void put_gap(Coder& encoder, const Axis& axis, std::uint32_t gap, std::uint32_t hazard) {
  const std::uint32_t begin = gap % kTurn;
  const std::uint32_t end = begin + hazard < kTurn ? begin + hazard : kTurn;
  const std::uint32_t start = axis.share_before(begin);
  encoder.put(start, axis.share_before(end) - start, kScaleBits);
  for (std::uint32_t turn = gap / kTurn; turn != 0; --turn) {
    encoder.put(kEscapeStart, kEscapeWeight, kScaleBits);
  }
}

// A decoded gap. The decoder finds the unit that has this point of the axis, then passes that
// unit's hazard to skip_gap().
struct GapPoint {
  std::uint32_t place;  // the result of peek()
  std::uint32_t turns;  // skipped, in units of the axis
  std::uint32_t point;  // from the end of the change before, including turns
};
// False if no unit is that far: `rest` is the remaining length of the axis.
template <typename Coder>
[[nodiscard]] constexpr bool peek_gap(Coder& decoder, const Axis& axis, std::uint32_t rest,
                                      GapPoint& gap) {
  gap.turns = 0;
  for (;;) {
    gap.place = decoder.peek(kScaleBits);
    const std::uint32_t point = axis.point_at(gap.place);
    gap.point = gap.turns + point;
    if (gap.point >= rest) return false;
    if (point < kTurn) [[likely]]
      return true;
    gap.turns += kTurn;
    decoder.skip(gap.place, kEscapeStart, kEscapeWeight, kScaleBits);
  }
}
// `begin` is where the unit's hazard begins, counted from the end of the change before. False if an
// encoder would have written another number of escapes.
template <typename Coder>
[[nodiscard]] constexpr bool skip_gap(Coder& decoder, const Axis& axis, const GapPoint& gap,
                                      std::uint32_t begin, std::uint32_t hazard) {
  if (begin < gap.turns) return false;
  begin -= gap.turns;
  const std::uint32_t end = begin + hazard < kTurn ? begin + hazard : kTurn;
  const std::uint32_t start = axis.share_before(begin);
  decoder.skip(gap.place, start, axis.share_before(end) - start, kScaleBits);
  return true;
}

// --- Steps: from the old value to the new one; they always differ.
struct Step {
  unsigned symbol;    // index of its weight in the table
  unsigned raw_bits;  // that follow the symbol
  std::uint32_t raw;
};
[[nodiscard]] constexpr Step step_between(const CompactFields& fields, std::uint32_t from,
                                          std::uint32_t to) {
  const std::uint32_t mask = fields.magnitude_mask();
  if (((from ^ to) & (mask + 1)) != 0)
    return {kCompactSignFlip, fields.magnitude_bits(), to & mask};
  const bool down = to < from;
  const std::uint32_t distance = down ? from - to : to - from;
  if (distance == 1) return {0, 1, down ? 1U : 0U};
  const auto log = static_cast<unsigned>(31 - std::countl_zero(distance));
  const unsigned half = (distance >> (log - 1)) & 1;
  const std::uint32_t rest = distance & ((std::uint32_t{1} << (log - 1)) - 1);
  return {2 * log - 1 + half, log, (rest << 1) | (down ? 1U : 0U)};
}
// The steps of a row of a table; null: every step has symbol 0.
[[nodiscard]] inline const CompactSteps* steps_of(const CompactTable& table, unsigned row) {
  return row == 0 ? nullptr : &table.steps[row - 1];
}
[[nodiscard]] constexpr bool has_step(const CompactSteps* steps, const Step& step) {
  return steps == nullptr ? step.symbol == 0 : steps->weight(step.symbol) != 0;
}
template <typename Coder>
constexpr void put_step(Coder& encoder, const CompactSteps* steps, const Step& step) {
  encoder.put_bits(step.raw, step.raw_bits);
  if (steps == nullptr) return;
  encoder.put(steps->starts[step.symbol], steps->weight(step.symbol), 8);
}
// False if the result is not a value of the type.
template <typename Coder>
[[nodiscard]] constexpr bool take_step(Coder& decoder, const CompactFields& fields,
                                       const CompactSteps* steps, std::uint32_t from,
                                       std::uint32_t& to) {
  const std::uint32_t mask = fields.magnitude_mask();
  std::uint32_t distance = 1;
  unsigned log = 0;
  if (steps != nullptr) {
    const std::uint32_t place = decoder.peek(8);
    const unsigned symbol = steps->symbols[place];
    decoder.skip(place, steps->starts[symbol], steps->weight(symbol), 8);
    if (symbol == kCompactSignFlip) {
      to = ((from ^ (mask + 1)) & (mask + 1)) | decoder.bits(fields.magnitude_bits());
      return true;
    }
    log = (symbol + 1) / 2;
    distance = log == 0 ? 1 : (2U | ((symbol + 1) & 1)) << (log - 1);
  }
  const std::uint32_t raw = decoder.bits(log == 0 ? 1 : log);
  distance |= raw >> 1;
  const std::uint32_t magnitude = from & mask;
  const bool down = (raw & 1) != 0;
  if (distance > (down ? magnitude : mask - magnitude)) return false;
  to = down ? from - distance : from + distance;
  return true;
}

// --- Units, at any address.
template <typename Unit>
[[nodiscard]] inline std::uint32_t load(const void* units, std::uint64_t at) {
  Unit unit;
  std::memcpy(&unit, static_cast<const std::byte*>(units) + at * sizeof(Unit), sizeof(Unit));
  return unit;
}
template <typename Unit>
inline void store(void* units, std::uint64_t at, std::uint32_t value) {
  const auto unit = static_cast<Unit>(value);
  std::memcpy(static_cast<std::byte*>(units) + at * sizeof(Unit), &unit, sizeof(Unit));
}

// Calls code(Unit{}) with the unsigned integer type of the fields' width.
template <typename Code>
auto with_unit(const CompactFields& fields, const Code& code) {
  switch (fields.unit_bytes) {
    case 1: return code(std::uint8_t{});
    case 2: return code(std::uint16_t{});
    default: return code(std::uint32_t{});
  }
}

}  // namespace driftless::compact
