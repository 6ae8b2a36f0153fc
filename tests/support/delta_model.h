// SPDX-License-Identifier: Apache-2.0
// Deltas for tests: owned deltas, random deltas, and the naive model that encoders are compared
// with.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/delta_view.h"
#include "core/layout.h"
#include "formats/bucket.h"

namespace driftless::testing {

using Bytes = std::vector<std::byte>;

struct OwnedDelta {
  std::uint32_t tensor = 0;
  unsigned unit_bytes = 1;
  std::uint64_t origin = 0;
  std::vector<std::uint32_t> offsets;
  Bytes values;

  [[nodiscard]] DeltaView view() const {
    return {tensor, unit_bytes, origin, offsets, values.data()};
  }
};

inline TensorSpec spec(std::string name, DType dtype, std::vector<std::uint64_t> shape) {
  return TensorSpec::make(std::move(name), dtype, std::move(shape)).value();
}

inline WeightLayout layout_of(std::vector<TensorSpec> tensors) {
  return WeightLayout::make(std::move(tensors)).value();
}

inline Bytes random_bytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline OwnedDelta delta_at(const WeightLayout& layout, std::uint32_t tensor, std::uint64_t origin,
                           std::vector<std::uint32_t> offsets, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const unsigned unit = unit_bytes(layout[tensor].dtype);
  Bytes values = random_bytes(random, offsets.size() * unit);
  return {tensor, unit, origin, std::move(offsets), std::move(values)};
}

// Strictly ascending offsets whose gaps are below `max_gap`.
inline std::vector<std::uint32_t> random_offsets(std::mt19937_64& random, std::size_t count,
                                                 std::uint32_t max_gap) {
  std::vector<std::uint32_t> offsets;
  std::uint64_t next = 0;
  for (std::size_t k = 0; k < count; ++k) {
    next += random() % max_gap;
    offsets.push_back(static_cast<std::uint32_t>(next++));
  }
  return offsets;
}

// The changes in a set of deltas: for each tensor, position -> bytes of the value.
using Changes = std::map<std::uint32_t, std::map<std::uint64_t, Bytes>>;

inline void note(Changes& changes, const DeltaView& delta) {
  for (std::size_t k = 0; k < delta.offsets.size(); ++k) {
    const std::byte* const value = delta.values + k * delta.unit_bytes;
    changes[delta.tensor][delta.origin + delta.offsets[k]] = Bytes(value, value + delta.unit_bytes);
  }
}

// Everything a bucket holds, through check_bucket and EntryCursor.
inline Result<Changes> decode_all(const WeightLayout& layout, const BucketView& bucket) {
  DRIFTLESS_RETURN_IF_ERROR(check_bucket(layout, bucket));
  Changes changes;
  for (const BucketEntry& entry : bucket.entries) {
    EntryCursor cursor(layout, bucket, entry);
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView piece, cursor.next());
      if (piece.count() == 0) break;
      note(changes, piece);
    }
  }
  return changes;
}

// A bucket whose parts a test may damage.
struct OwnedBucket {
  Encoding coding;
  DType dtype;
  std::vector<BucketEntry> entries;
  Bytes positions, values;

  explicit OwnedBucket(const BucketView& view)
      : coding(view.coding),
        dtype(view.dtype),
        entries(view.entries.begin(), view.entries.end()),
        positions(view.positions.begin(), view.positions.end()),
        values(view.values.begin(), view.values.end()) {}
  [[nodiscard]] BucketView view() const { return {coding, dtype, entries, positions, values}; }
};

}  // namespace driftless::testing
