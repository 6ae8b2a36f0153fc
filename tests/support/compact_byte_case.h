// SPDX-License-Identifier: Apache-2.0
// The fixed input behind tests/golden/frame_compact_fp8.bin: codes of a quantized matrix in one
// full tile and a part of another, which tests/python/test_compact_reader.py has, too. Changing
// anything here changes the golden file.
#pragma once

#include "support/compact_case.h"

namespace driftless::testing {

inline std::uint8_t compact_old_code(std::uint64_t unit) {
  const std::uint64_t noise = compact_noise(0, unit);
  const auto exponent = static_cast<std::uint64_t>(12 - std::countr_zero((noise >> 8) | 2048));
  return static_cast<std::uint8_t>((noise & 1) << 7 | exponent << 3 | ((noise >> 1) & 7));
}
inline std::uint8_t compact_new_code(std::uint64_t unit) {
  const std::uint64_t noise = compact_noise(0, unit);
  const std::uint8_t old = compact_old_code(unit);
  if ((noise >> 40) % 200 != 0) return old;
  switch ((noise >> 48) % 16) {
    case 0: return old ^ 0x80;
    case 1: return static_cast<std::uint8_t>(old - 3);
    case 2: return static_cast<std::uint8_t>(old + 3);
    default: return static_cast<std::uint8_t>((noise >> 48) % 2 == 1 ? old + 1 : old - 1);
  }
}

struct CompactByteCase {
  WeightLayout layout =
      layout_of({spec("model.layers.0.mlp.up_proj.weight", DType::kF8E4M3, {300, 256})});
  Bytes before, values, old_values;
  std::vector<std::uint32_t> positions;
  CompactTable table;

  CompactByteCase() {
    for (std::uint64_t unit = 0; unit < layout[0].units(); ++unit) {
      const std::byte old{compact_old_code(unit)}, now{compact_new_code(unit)};
      before.push_back(old);
      if (old == now) continue;
      positions.push_back(static_cast<std::uint32_t>(unit));
      values.push_back(now);
      old_values.push_back(old);
    }
    const CompactFields fields = *compact_fields(DType::kF8E4M3);
    const auto counts = std::make_unique<CompactCounts>();
    count_compact_units(fields, before.data(), before.size(), *counts);
    count_compact_changes(fields, old_values.data(), values.data(), values.size(), *counts);
    table = make_compact_table(fields, *counts);
  }
  // Empty if it cannot be made.
  [[nodiscard]] Bytes frame() const {
    const HostKernels& kernels = all_host_kernels().front();
    const DeltaView delta{0, 1, 0, positions, values.data()};
    CompactStreams coded;
    Bytes index, out;
    if (!encode_compact(kernels, table, delta, before.data(), before.size(), coded).ok()) return {};
    append_compact_index(
        {kernels.digest_change(digest_tensor_key(layout[0].name), 1, 0, positions.data(),
                               positions.size(), old_values.data(), values.data()),
         coded.tiles},
        index);
    const CompactBlock block{0, nullptr, 0, positions.size(), index, coded.bytes};
    const FrameContext context = golden_context(layout, Encoding::kCompact);
    if (!encode_compact_frame(context, layout, DType::kF8E4M3, {&table, 1}, {&block, 1}, out)
             .ok()) {
      return {};
    }
    return out;
  }
};

}  // namespace driftless::testing
