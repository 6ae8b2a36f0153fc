// SPDX-License-Identifier: Apache-2.0
// Recomputes all hashes of a damaged frame (docs/formats/frame.md), so that a test reaches the
// checks that come after them.
#pragma once

#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace driftless::testing {

template <typename T>
void put(std::vector<std::byte>& frame, std::size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof(T));
}
template <typename T>
T get(const std::vector<std::byte>& frame, std::size_t at) {
  T value;
  std::memcpy(&value, frame.data() + at, sizeof(T));
  return value;
}

inline XXH128_canonical_t canonical_hash(const void* data, std::size_t size) {
  XXH128_canonical_t hash;
  XXH128_canonicalFromHash(&hash, XXH3_128bits(data, size));
  return hash;
}

// Stops where the sizes in the frame do not fit.
inline void reseal(std::vector<std::byte>& frame) {
  constexpr std::size_t kHeader = 128, kRow = 64, kTrailer = 16;
  if (frame.size() < kHeader) return;
  put(frame, 120, std::uint64_t{XXH3_64bits(frame.data(), 120)});
  const auto table_bytes = get<std::uint64_t>(frame, 24);
  if (table_bytes > frame.size() - kHeader || frame.size() - kHeader - table_bytes < kTrailer) {
    return;
  }
  const std::size_t table = frame.size() - kTrailer - table_bytes;
  const auto within = [&](std::size_t at, std::uint64_t size) {
    return at <= table && size <= table - at;
  };
  std::size_t positions = kHeader;
  std::size_t values = kHeader + (get<std::uint64_t>(frame, 32) + 7) / 8 * 8;
  for (std::size_t row = table; row + kRow <= frame.size() - kTrailer;) {
    const auto position_bytes = get<std::uint64_t>(frame, row + 32);
    const auto value_bytes = get<std::uint64_t>(frame, row + 40);
    if (!within(positions, position_bytes) || !within(values, value_bytes)) break;
    const XXH128_canonical_t streams[] = {canonical_hash(frame.data() + positions, position_bytes),
                                          canonical_hash(frame.data() + values, value_bytes)};
    put(frame, row + 48, canonical_hash(streams, sizeof(streams)));
    positions += position_bytes;
    values += value_bytes;
    row += kRow + 16 * std::size_t{get<std::uint8_t>(frame, row + 6)};
  }
  put(frame, frame.size() - kTrailer, canonical_hash(frame.data() + table, table_bytes));
}

}  // namespace driftless::testing
