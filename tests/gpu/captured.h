// SPDX-License-Identifier: Apache-2.0
// What cuda::CaptureBatch found in one tensor, on the host and in order.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "gpu/device.h"
#include "kernels/cuda/operations.h"

namespace driftless::testing {

struct Captured {
  std::uint64_t changed = 0;  // kept or not
  std::uint64_t lost = 0;     // of tiles that found no room
  std::vector<std::uint32_t> positions;
  std::vector<std::byte> values, old_values;
};

inline Captured capture(const DeviceBytes& before, const DeviceBytes& after, std::uint64_t count,
                        unsigned unit_bytes, ValueCast cast, std::uint64_t room) {
  const std::uint64_t units[] = {count};
  const WorkMemory work(cuda::CaptureBatch::workspace_size(units, unit_bytes));
  auto batch = cuda::CaptureBatch::make(units, unit_bytes, cast, work.get(), nullptr);
  must(batch.status());
  const DeviceBytes offsets(room * 2), values(room * unit_bytes), old_values(room * unit_bytes);
  const cuda::CaptureBatch::Tensor tensor{before.data(), after.data()};
  must(batch->run(
      {&tensor, 1},
      {reinterpret_cast<std::uint16_t*>(offsets.data()), values.data(), old_values.data(), room},
      nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(offsets.intact() && values.intact() && old_values.intact() && work.intact());
  std::vector<std::uint16_t> kept(room);
  std::vector<std::byte> new_bytes(room * unit_bytes), old_bytes(room * unit_bytes);
  std::vector<cuda::CaptureBatch::Tile> tiles(batch->tiles());
  Captured found;
  const auto bring = [](void* to, const void* from, std::uint64_t bytes) {
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  };
  bring(kept.data(), offsets.data(), kept.size() * 2);
  bring(new_bytes.data(), values.data(), new_bytes.size());
  bring(old_bytes.data(), old_values.data(), old_bytes.size());
  bring(tiles.data(), batch->tiles_dev(), tiles.size() * sizeof(tiles[0]));
  bring(&found.changed, batch->changed_dev(), sizeof(found.changed));
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const auto [base, in_tile, first, last] = tiles[i];
    if (base + in_tile > room) {
      found.lost += in_tile;
      continue;
    }
    const auto begin =
        static_cast<std::uint32_t>(i * (cuda::CaptureBatch::kTileBytes / unit_bytes));
    for (std::uint64_t k = base; k < base + in_tile; ++k)
      found.positions.push_back(begin + kept[k]);
    const auto add = [&, base = base, count = in_tile](std::vector<std::byte>& to,
                                                       const std::vector<std::byte>& from) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(base * unit_bytes),
                from.begin() + static_cast<std::ptrdiff_t>((base + in_tile) * unit_bytes));
    };
    add(found.values, new_bytes);
    add(found.old_values, old_bytes);
  }
  return found;
}

}  // namespace driftless::testing
