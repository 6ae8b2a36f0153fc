// SPDX-License-Identifier: Apache-2.0
#include "core/compact.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace driftless {
namespace {

// The hazard of a class with changes is from 1 to kMaxCompactHazard. So every change can be coded,
// even if the class has few units or if only a sample of its units was counted.
std::uint16_t hazard_of(std::uint64_t changes, std::uint64_t units) {
  if (changes == 0) return 0;
  const double p = static_cast<double>(changes) / static_cast<double>(std::max(units, changes));
  const double hazard = p < 1 ? -std::log2(1 - p) * (65536.0 / 6) : kMaxCompactHazard;
  return static_cast<std::uint16_t>(std::clamp(std::round(hazard), 1.0, double{kMaxCompactHazard}));
}

// Divides kCompactStepScale among the symbols by their counts. Each counted symbol gets at least 1.
std::array<std::uint16_t, kCompactStepSymbols> weights_of(
    const std::array<std::uint64_t, kCompactStepSymbols>& counts) {
  const std::uint64_t all =
      std::max<std::uint64_t>(1, std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  std::array<std::uint16_t, kCompactStepSymbols> weights{};
  unsigned sum = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    const std::uint64_t share = (counts[s] * kCompactStepScale + all / 2) / all;
    weights[s] = static_cast<std::uint16_t>(std::max<std::uint64_t>(share, 1));
    sum += weights[s];
  }
  for (; sum != kCompactStepScale; sum += sum < kCompactStepScale ? 1 : -1) {
    auto& largest = *std::max_element(weights.begin(), weights.end());
    largest = static_cast<std::uint16_t>(sum < kCompactStepScale ? largest + 1 : largest - 1);
  }
  return weights;
}

}  // namespace

std::optional<CompactFields> compact_fields(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return CompactFields{2, 7};
    case DType::kF16: return CompactFields{2, 10};
    case DType::kF32: return CompactFields{4, 23};
    case DType::kF8E4M3:
    case DType::kF8E4M3Fnuz: return CompactFields{1, 3};
    case DType::kF8E5M2:
    case DType::kF8E5M2Fnuz: return CompactFields{1, 2};
    default: return std::nullopt;
  }
}

CompactSteps compact_steps(const std::array<std::uint16_t, kCompactStepSymbols>& weights) {
  CompactSteps steps;
  unsigned at = 0;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    steps.starts[s] = static_cast<std::uint16_t>(at);
    for (unsigned i = 0; i < weights[s] && at < kCompactStepScale; ++i, ++at) {
      steps.symbols[at] = static_cast<std::uint8_t>(s);
    }
  }
  steps.starts[weights.size()] = static_cast<std::uint16_t>(at);
  return steps;
}

unsigned CompactTable::first_class() const {
  unsigned first = 0;
  while (first < kCompactClasses && hazards[first] == 0) ++first;
  return first;
}

unsigned CompactTable::end_class() const {
  unsigned end = kCompactClasses;
  while (end > 0 && hazards[end - 1] == 0) --end;
  return end;
}

void CompactCounts::add(const CompactCounts& other) {
  for (std::size_t c = 0; c < kCompactClasses; ++c) {
    units[c] += other.units[c];
    changes[c] += other.changes[c];
    for (std::size_t s = 0; s < kCompactStepSymbols; ++s) steps[c][s] += other.steps[c][s];
  }
}

CompactTable make_compact_table(const CompactFields& fields, const CompactCounts& counts) {
  CompactTable table;
  table.fields = fields;
  for (std::size_t c = 0; c < kCompactClasses; ++c) {
    table.hazards[c] = hazard_of(counts.changes[c], counts.units[c]);
    if (counts.changes[c] == counts.steps[c][0]) continue;
    table.steps.push_back(compact_steps(weights_of(counts.steps[c])));
    table.step_rows[c] = static_cast<std::uint16_t>(table.steps.size());
  }
  return table;
}

}  // namespace driftless
