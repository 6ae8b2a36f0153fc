// SPDX-License-Identifier: Apache-2.0
#include "kernels/compact_model.h"
#include "kernels/cpu/baseline.h"

namespace driftless::cpu {
namespace {

using namespace compact;

template <typename Unit>
constexpr std::uint32_t kTileUnits = compact_tile_units(sizeof(Unit));

// The axis of a tile: sums of hazards for groups of units; the last group may be shorter.
template <typename Unit>
class TileAxis {
 public:
  TileAxis(HazardSums hazard_sums, const CompactTable& table, const void* units,
           std::uint32_t count)
      : units_(static_cast<const std::byte*>(units)),
        hazards_(table.hazards.data()),
        shift_(table.fields.mantissa_bits),
        mask_(table.fields.classes() - 1) {
    const HazardTable hazards{hazards_, sizeof(Unit),        shift_,
                              mask_,    table.first_class(), table.end_class()};
    const std::uint32_t groups = count / kHazardGroup;
    hazard_sums(hazards, units, groups, sums_);
    std::uint32_t end = sums_[groups];
    for (std::uint32_t i = groups * kHazardGroup; i < count; ++i)
      end += hazard(load<Unit>(units_, i));
    sums_[groups + 1] = length_ = end;
  }

  [[nodiscard]] std::uint32_t length() const { return length_; }
  [[nodiscard]] std::uint32_t hazard(std::uint32_t unit) const {
    return hazards_[(unit >> shift_) & mask_];
  }
  [[nodiscard]] std::uint32_t begin_of(std::uint32_t at) const {
    std::uint32_t sum = sums_[at / kHazardGroup];
    for (std::uint32_t i = at / kHazardGroup * kHazardGroup; i < at; ++i) {
      sum += hazard(load<Unit>(units_, i));
    }
    return sum;
  }

  struct Place {
    std::uint32_t at, begin;
  };
  // The unit that has `point`; the point must be on the axis and not before `group`.
  [[nodiscard]] Place find(std::uint32_t point, std::uint32_t group) const {
    while (sums_[group + 1] <= point) ++group;
    Place place{group * kHazardGroup, sums_[group]};
    for (;;) {
      const std::uint32_t end = place.begin + hazard(load<Unit>(units_, place.at));
      if (end > point) return place;
      place.begin = end;
      ++place.at;
    }
  }

 private:
  const std::byte* units_;
  const std::uint16_t* hazards_;
  unsigned shift_, mask_;
  std::uint32_t length_;
  std::uint32_t sums_[kTileUnits<Unit> / kHazardGroup + 2];
};

template <typename Unit>
std::uint32_t encode(HazardSums hazard_sums, const CompactTable& table, const void* old_units,
                     std::uint32_t units, const std::uint32_t* offsets, std::uint32_t count,
                     const void* values, std::byte* stream) {
  const TileAxis<Unit> axis(hazard_sums, table, old_units, units);
  std::uint32_t gaps[kTileUnits<Unit>];
  std::uint32_t end = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::uint32_t begin = axis.begin_of(offsets[k]);
    gaps[k] = begin - end;
    end = begin + axis.hazard(load<Unit>(old_units, offsets[k]));
  }
  Encoder encoder(stream + max_compact_bytes(table.fields, count));
  for (std::uint32_t k = count; k-- > 0;) {
    const std::uint32_t from = load<Unit>(old_units, offsets[k]);
    const CompactSteps* const steps = steps_of(table, table.step_rows[table.fields.class_of(from)]);
    const std::uint32_t hazard = axis.hazard(from);
    const Step step = step_between(table.fields, from, load<Unit>(values, k));
    if (hazard == 0 || !has_step(steps, step)) return kCompactNotInTable;
    put_step(encoder, steps, step);
    put_gap(encoder, kAxis, gaps[k], hazard);
  }
  return encoder.finish_at(stream);
}

template <typename Unit>
bool decode(HazardSums hazard_sums, const CompactTable& table, const void* old_units,
            std::uint32_t units, std::span<const std::byte> stream, std::uint32_t count,
            std::uint32_t* offsets, void* values, void* old_values) {
  const TileAxis<Unit> axis(hazard_sums, table, old_units, units);
  Decoder decoder(stream.data(), stream.data() + stream.size());
  std::uint32_t end = 0, group = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    GapPoint gap;
    if (!peek_gap(decoder, kAxis, axis.length() - end, gap)) return false;
    const auto place = axis.find(end + gap.point, group);
    const std::uint32_t from = load<Unit>(old_units, place.at);
    const std::uint32_t hazard = axis.hazard(from);
    if (!skip_gap(decoder, kAxis, gap, place.begin - end, hazard)) return false;
    std::uint32_t to;
    const CompactSteps* const steps = steps_of(table, table.step_rows[table.fields.class_of(from)]);
    if (!take_step(decoder, table.fields, steps, from, to) || !decoder.good()) return false;
    offsets[k] = place.at;
    store<Unit>(values, k, to);
    if (old_values != nullptr) store<Unit>(old_values, k, from);
    end = place.begin + hazard;
    group = place.at / kHazardGroup;
  }
  return decoder.finished();
}

}  // namespace

std::uint32_t compact_encode(HazardSums hazard_sums, const CompactTable& table,
                             const void* old_units, std::uint32_t units,
                             const std::uint32_t* offsets, std::uint32_t count, const void* values,
                             std::byte* stream) {
  if (count == 0) return 0;
  return with_unit(table.fields, [&]<typename Unit>(Unit) {
    return encode<Unit>(hazard_sums, table, old_units, units, offsets, count, values, stream);
  });
}

bool compact_decode(HazardSums hazard_sums, const CompactTable& table, const void* old_units,
                    std::uint32_t units, std::span<const std::byte> stream, std::uint32_t count,
                    std::uint32_t* offsets, void* values, void* old_values) {
  if (count == 0) return stream.empty();
  return with_unit(table.fields, [&]<typename Unit>(Unit) {
    return decode<Unit>(hazard_sums, table, old_units, units, stream, count, offsets, values,
                        old_values);
  });
}

}  // namespace driftless::cpu
