// SPDX-License-Identifier: Apache-2.0
#include "kernels/compact_model.h"
#include "kernels/reference/operations.h"

namespace driftless::reference {
namespace {

using namespace compact;

template <typename Unit>
std::uint32_t hazard_at(const CompactTable& table, const void* units, std::uint32_t at) {
  return table.hazards[table.fields.class_of(load<Unit>(units, at))];
}

// Backwards, as rANS codes: the last change first.
template <typename Unit>
std::uint32_t encode(const CompactTable& table, const void* old_units, const std::uint32_t* offsets,
                     std::uint32_t count, const void* values, std::byte* stream) {
  Encoder encoder(stream + max_compact_bytes(table.fields, count));
  for (std::uint32_t k = count; k-- > 0;) {
    const std::uint32_t from = load<Unit>(old_units, offsets[k]);
    const CompactSteps* const steps = steps_of(table, table.step_rows[table.fields.class_of(from)]);
    const std::uint32_t hazard = hazard_at<Unit>(table, old_units, offsets[k]);
    const Step step = step_between(table.fields, from, load<Unit>(values, k));
    if (hazard == 0 || !has_step(steps, step)) return kCompactNotInTable;
    put_step(encoder, steps, step);
    std::uint32_t gap = 0;
    for (std::uint32_t i = k == 0 ? 0 : offsets[k - 1] + 1; i < offsets[k]; ++i) {
      gap += hazard_at<Unit>(table, old_units, i);
    }
    put_gap(encoder, kAxis, gap, hazard);
  }
  return encoder.finish_at(stream);
}

template <typename Unit>
bool decode(const CompactTable& table, const void* old_units, std::uint32_t units,
            std::span<const std::byte> stream, std::uint32_t count, std::uint32_t* offsets,
            void* values, void* old_values) {
  Decoder decoder(stream.data(), stream.data() + stream.size());
  std::uint32_t next = 0;  // the first unit after the last change
  std::uint32_t rest = 0;  // length of the axis from there
  for (std::uint32_t i = 0; i < units; ++i) rest += hazard_at<Unit>(table, old_units, i);
  for (std::uint32_t k = 0; k < count; ++k) {
    GapPoint gap;
    if (!peek_gap(decoder, kAxis, rest, gap)) return false;
    std::uint32_t begin = 0;
    while (begin + hazard_at<Unit>(table, old_units, next) <= gap.point) {
      begin += hazard_at<Unit>(table, old_units, next++);
    }
    const std::uint32_t hazard = hazard_at<Unit>(table, old_units, next);
    if (!skip_gap(decoder, kAxis, gap, begin, hazard)) return false;
    rest -= begin + hazard;
    const std::uint32_t from = load<Unit>(old_units, next);
    std::uint32_t to;
    const CompactSteps* const steps = steps_of(table, table.step_rows[table.fields.class_of(from)]);
    if (!take_step(decoder, table.fields, steps, from, to) || !decoder.good()) return false;
    offsets[k] = next++;
    store<Unit>(values, k, to);
    if (old_values != nullptr) store<Unit>(old_values, k, from);
  }
  return decoder.finished();
}

}  // namespace

std::uint32_t compact_encode(const CompactTable& table, const void* old_units, std::uint32_t,
                             const std::uint32_t* offsets, std::uint32_t count, const void* values,
                             std::byte* stream) {
  if (count == 0) return 0;
  return with_unit(table.fields, [&]<typename Unit>(Unit) {
    return encode<Unit>(table, old_units, offsets, count, values, stream);
  });
}

bool compact_decode(const CompactTable& table, const void* old_units, std::uint32_t units,
                    std::span<const std::byte> stream, std::uint32_t count, std::uint32_t* offsets,
                    void* values, void* old_values) {
  if (count == 0) return stream.empty();
  return with_unit(table.fields, [&]<typename Unit>(Unit) {
    return decode<Unit>(table, old_units, units, stream, count, offsets, values, old_values);
  });
}

}  // namespace driftless::reference
