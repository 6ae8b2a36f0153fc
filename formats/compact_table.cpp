// SPDX-License-Identifier: Apache-2.0
#include "formats/compact_table.h"

#include <algorithm>
#include <bit>

#include "formats/frame_parts.h"

namespace driftless {
namespace {

using StepWeights = std::array<std::uint16_t, kCompactStepSymbols>;

Status cut_short(std::string_view what) {
  return error(StatusCode::kCorrupt, "compact: ", what, " ends too early");
}

// Bytes from the front of a span.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte>& rest) : rest_(rest) {}
  [[nodiscard]] bool has(std::size_t count) const { return rest_.size() >= count; }
  template <typename T>
  T get() {
    const T value = FieldReader(rest_.data()).get<T>();
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte>& rest_;
};

template <typename T>
void put(std::vector<std::byte>& out, T value) {
  out.resize(out.size() + sizeof(T));
  FieldWriter(out.data() + out.size() - sizeof(T)).put(value);
}

Result<StepWeights> read_steps(Bytes& bytes, unsigned count) {
  StepWeights weights{};
  if (!bytes.has(std::size_t{2} * count)) return cut_short("a table");
  unsigned sum = 0;
  int last = -1;
  for (unsigned i = 0; i < count; ++i) {
    const int symbol = bytes.get<std::uint8_t>();
    const unsigned weight = bytes.get<std::uint8_t>() + 1U;
    if (symbol <= last || symbol >= static_cast<int>(kCompactStepSymbols)) {
      return error(StatusCode::kCorrupt, "compact: step symbol ", symbol, " after ", last,
                   " in a table, expected a larger one below ", kCompactStepSymbols);
    }
    weights[static_cast<std::size_t>(symbol)] = static_cast<std::uint16_t>(weight);
    sum += weight;
    last = symbol;
  }
  if (sum != kCompactStepScale || last == 0) {
    return error(StatusCode::kCorrupt, "compact: the ", count,
                 " step weights of a class sum up to ", sum, ", expected ", kCompactStepScale,
                 last == 0 ? ", not all of symbol 0" : "");
  }
  return weights;
}

// The least width of a field for values from 0 to `most`.
unsigned bits_for(std::uint32_t most) { return static_cast<unsigned>(std::bit_width(most)); }

// The maximum of a 16-bit field; a tile of one-byte units may have more changes.
constexpr std::uint32_t kMostLeastChanges = 0xffff;

struct IndexHead {
  std::uint16_t least_changes = 0;
  std::uint8_t change_bits = 0, byte_bits = 0;
  std::uint32_t least_bytes = 0;
};

IndexHead head_of(std::span<const CompactTile> tiles) {
  std::uint32_t least_changes = ~0U, most_changes = 0, least_bytes = ~0U, most_bytes = 0;
  for (const CompactTile& tile : tiles) {
    least_changes = std::min(least_changes, tile.changes);
    most_changes = std::max(most_changes, tile.changes);
    least_bytes = std::min(least_bytes, tile.bytes);
    most_bytes = std::max(most_bytes, tile.bytes);
  }
  if (tiles.empty()) return {};
  least_changes = std::min(least_changes, kMostLeastChanges);
  return {static_cast<std::uint16_t>(least_changes),
          static_cast<std::uint8_t>(bits_for(most_changes - least_changes)),
          static_cast<std::uint8_t>(bits_for(most_bytes - least_bytes)), least_bytes};
}

// Writes fields of less than 32 bits, one after the other, from the low bits of each byte on.
class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}
  void put(std::uint32_t value, unsigned bits) {
    held_ |= std::uint64_t{value} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) shift_out();
  }
  void finish() {
    if (count_ > 0) shift_out();
  }

 private:
  void shift_out() { out_.push_back(static_cast<std::byte>(held_)); }
  std::vector<std::byte>& out_;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // There must be so many bits left.
  std::uint32_t get(unsigned bits) {
    for (; count_ < bits; count_ += 8) {
      held_ |= std::to_integer<std::uint64_t>(bytes_[at_++]) << count_;
    }
    const auto value = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return value;
  }
  [[nodiscard]] bool rest_is_zero() const { return held_ == 0; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

}  // namespace

void append_compact_table(const CompactTable& table, std::vector<std::byte>& out) {
  const unsigned first = table.first_class(), end = table.end_class();
  put(out, static_cast<std::uint8_t>(first));
  put(out, static_cast<std::uint8_t>(end - first - 1));
  for (unsigned c = first; c < end; ++c) put(out, table.hazards[c]);
  for (unsigned c = first; c < end; ++c) {
    if (table.hazards[c] == 0) continue;
    const std::size_t count_at = out.size();
    put(out, std::uint8_t{0});
    if (table.step_rows[c] == 0) continue;
    const CompactSteps& steps = table.steps[table.step_rows[c] - 1];
    unsigned count = 0;
    for (unsigned s = 0; s < kCompactStepSymbols; ++s) {
      if (steps.weight(s) == 0) continue;
      put(out, static_cast<std::uint8_t>(s));
      put(out, static_cast<std::uint8_t>(steps.weight(s) - 1));
      ++count;
    }
    out[count_at] = static_cast<std::byte>(count);
  }
}

Result<CompactTable> read_compact_table(const CompactFields& fields,
                                        std::span<const std::byte>& rest) {
  Bytes bytes(rest);
  if (!bytes.has(2)) return cut_short("a table");
  const unsigned first = bytes.get<std::uint8_t>();
  const unsigned end = first + bytes.get<std::uint8_t>() + 1;
  if (end > fields.classes()) {
    return error(StatusCode::kCorrupt, "compact: a table of classes ", first, " to ", end - 1,
                 ", the type has ", fields.classes());
  }
  if (!bytes.has(std::size_t{2} * (end - first))) return cut_short("a table");
  CompactTable table;
  table.fields = fields;
  for (unsigned c = first; c < end; ++c) table.hazards[c] = bytes.get<std::uint16_t>();
  if (table.first_class() != first || table.end_class() != end) {
    return error(StatusCode::kCorrupt,
                 "compact: a table begins or ends with a class that has no "
                 "hazard");
  }
  for (unsigned c = first; c < end; ++c) {
    if (table.hazards[c] == 0) continue;
    if (!bytes.has(1)) return cut_short("a table");
    const unsigned count = bytes.get<std::uint8_t>();
    if (count == 0) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const StepWeights weights, read_steps(bytes, count));
    table.steps.push_back(compact_steps(weights));
    table.step_rows[c] = static_cast<std::uint16_t>(table.steps.size());
  }
  return table;
}

void append_compact_index(const CompactIndex& index, std::vector<std::byte>& out) {
  const IndexHead head = head_of(index.tiles);
  put(out, Hash128{index.change.lanes[0], index.change.lanes[1]});
  put(out, head.least_changes);
  put(out, head.change_bits);
  put(out, head.byte_bits);
  put(out, head.least_bytes);
  BitWriter bits(out);
  for (const CompactTile& tile : index.tiles) {
    bits.put(tile.changes - head.least_changes, head.change_bits);
    bits.put(tile.bytes - head.least_bytes, head.byte_bits);
  }
  bits.finish();
}

Result<CompactIndex> read_compact_index(const CompactFields& fields,
                                        std::span<const std::byte> rest, std::uint64_t units,
                                        std::uint64_t changes, std::uint64_t stream_bytes) {
  const std::uint64_t tiles = fields.tiles(units);
  if (rest.size() < kCompactIndexHeadBytes) return cut_short("an index");
  CompactIndex index;
  Bytes bytes(rest);
  const auto change = bytes.get<Hash128>();
  index.change.lanes = {change.high, change.low};
  IndexHead head;
  head.least_changes = bytes.get<std::uint16_t>();
  head.change_bits = bytes.get<std::uint8_t>();
  head.byte_bits = bytes.get<std::uint8_t>();
  head.least_bytes = bytes.get<std::uint32_t>();
  const unsigned width = head.change_bits + head.byte_bits;
  if (change.high >= kDigestPrime || change.low >= kDigestPrime ||
      head.change_bits > bits_for(fields.tile_units()) || head.byte_bits > 24 ||
      rest.size() != (tiles * width + 7) / 8) {
    return error(StatusCode::kCorrupt, "compact: an index of ", rest.size(), " bytes for ", tiles,
                 " tiles, with fields of ", +head.change_bits, " and ", +head.byte_bits, " bits");
  }
  BitReader bits(rest);
  index.tiles.resize(tiles);
  std::uint64_t all_changes = 0, all_bytes = 0;
  for (std::uint64_t i = 0; i < tiles; ++i) {
    CompactTile& tile = index.tiles[i];
    tile.changes = head.least_changes + bits.get(head.change_bits);
    const std::uint64_t size = std::uint64_t{head.least_bytes} + bits.get(head.byte_bits);
    const std::uint64_t most =
        std::min<std::uint64_t>(fields.tile_units(), units - i * fields.tile_units());
    // A change takes at least one bit, so that memory is bounded by the stored bytes.
    if (tile.changes > most || tile.changes > 8 * size || size > stream_bytes - all_bytes ||
        (tile.changes == 0) != (size == 0)) {
      return error(StatusCode::kCorrupt, "compact: tile ", i, " has ", tile.changes, " changes of ",
                   most, " units in ", size, " bytes, with ", stream_bytes - all_bytes, " left");
    }
    tile.bytes = static_cast<std::uint32_t>(size);
    all_changes += tile.changes;
    all_bytes += size;
  }
  const IndexHead expected = head_of(index.tiles);
  const bool canonical = expected.least_changes == head.least_changes &&
                         expected.change_bits == head.change_bits &&
                         expected.byte_bits == head.byte_bits &&
                         expected.least_bytes == head.least_bytes && bits.rest_is_zero();
  if (all_changes != changes || all_bytes != stream_bytes || !canonical) {
    return error(StatusCode::kCorrupt, "compact: the tiles have ", all_changes, " changes in ",
                 all_bytes, " bytes, the row says ", changes, " in ", stream_bytes,
                 canonical ? "" : "; or the index is not as short as it can be");
  }
  return index;
}

}  // namespace driftless
