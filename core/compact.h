// SPDX-License-Identifier: Apache-2.0
// The model behind the encoding `compact` (docs/formats/compact.md). The formats store its tables,
// the kernels code with them. Each change is coded with the statistics of its class: the exponent
// of the unit's old value, which both sides hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/dtype.h"

namespace driftless {

// Each tile is coded independently. Tiles of one-byte units hold more of them: their changes are
// rarer, and a tile costs 5 bytes whatever it holds.
inline constexpr std::uint32_t kCompactTileUnits = 16384;
inline constexpr std::uint32_t kCompactByteTileUnits = 65536;
[[nodiscard]] constexpr std::uint32_t compact_tile_units(unsigned unit_bytes) {
  return unit_bytes == 1 ? kCompactByteTileUnits : kCompactTileUnits;
}
inline constexpr std::size_t kCompactClasses = 256;  // the most: one for each 8-bit exponent
inline constexpr std::uint32_t kMaxCompactHazard = 65535;
// How far a value moved: symbols 0 to 60 are distances of magnitudes; the last symbol is a change
// of sign.
inline constexpr std::size_t kCompactStepSymbols = 62;
inline constexpr unsigned kCompactSignFlip = kCompactStepSymbols - 1;
inline constexpr unsigned kCompactStepScale = 256;  // the sum of the weights of a class

// The bit fields of a float, from the top: sign, exponent, mantissa.
struct CompactFields {
  unsigned unit_bytes = 2;
  unsigned mantissa_bits = 7;

  [[nodiscard]] constexpr std::uint32_t tile_units() const {
    return compact_tile_units(unit_bytes);
  }
  [[nodiscard]] constexpr std::uint64_t tiles(std::uint64_t units) const {
    return (units + tile_units() - 1) / tile_units();
  }
  [[nodiscard]] constexpr unsigned magnitude_bits() const { return 8 * unit_bytes - 1; }
  [[nodiscard]] constexpr std::uint32_t magnitude_mask() const {
    return ~std::uint32_t{0} >> (32 - magnitude_bits());
  }
  [[nodiscard]] constexpr unsigned class_of(std::uint32_t unit) const {
    return (unit & magnitude_mask()) >> mantissa_bits;
  }
  [[nodiscard]] constexpr unsigned classes() const {
    return 1U << (magnitude_bits() - mantissa_bits);
  }
  friend bool operator==(const CompactFields&, const CompactFields&) = default;
};
// For signed floats of 8, 16 and 32 bits; nothing for other types.
[[nodiscard]] std::optional<CompactFields> compact_fields(DType dtype);

// How the changes of a class are distributed over the symbols, as cumulative weights.
struct CompactSteps {
  std::array<std::uint16_t, kCompactStepSymbols + 1> starts{};  // [s]: sum of the weights before s
  std::array<std::uint8_t, kCompactStepScale> symbols{};        // [x]: the s whose range has x

  [[nodiscard]] constexpr unsigned weight(unsigned symbol) const {
    return starts[symbol + 1] - starts[symbol];
  }
};
[[nodiscard]] CompactSteps compact_steps(
    const std::array<std::uint16_t, kCompactStepSymbols>& weights);

struct CompactTable {
  CompactFields fields;
  // -log2(1 - p) in units of 6 / 65536; p: the fraction of the class that changes. 0: none does.
  std::array<std::uint16_t, kCompactClasses> hazards{};
  std::array<std::uint16_t, kCompactClasses> step_rows{};  // 0: only symbol 0; r: steps[r - 1]
  std::vector<CompactSteps> steps;

  // The classes that have a hazard lie in [first, end).
  [[nodiscard]] unsigned first_class() const;
  [[nodiscard]] unsigned end_class() const;
};

// One tile of a coded block.
struct CompactTile {
  std::uint32_t changes = 0;  // at most its units
  std::uint32_t bytes = 0;    // of its stream; 0 exactly if nothing changes

  friend bool operator==(const CompactTile&, const CompactTile&) = default;
};

// The counts from which a table is built, summed over any number of tensors.
struct CompactCounts {
  std::array<std::uint64_t, kCompactClasses> units{};  // all of them, changed or not
  std::array<std::uint64_t, kCompactClasses> changes{};
  std::array<std::array<std::uint64_t, kCompactStepSymbols>, kCompactClasses> steps{};

  void add(const CompactCounts& other);
};
// A table that can code every change that was counted.
[[nodiscard]] CompactTable make_compact_table(const CompactFields& fields,
                                              const CompactCounts& counts);

}  // namespace driftless
