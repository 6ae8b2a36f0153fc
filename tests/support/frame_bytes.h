// SPDX-License-Identifier: Apache-2.0
// The bytes of a frame (docs/formats/frame.md), for tests that damage them.
#pragma once

#include <gtest/gtest.h>

#include "support/delta_model.h"
#include "support/frame_reseal.h"

namespace driftless::testing {

// Expects kCorrupt from `decode(bytes)` for every truncation, for one extra byte, and for a flipped
// bit anywhere.
template <typename Decode>
void expect_damage_is_corrupt(const Bytes& frame, const Decode& decode) {
  for (std::size_t size = 0; size < frame.size(); ++size) {
    ASSERT_EQ(decode(Bytes(frame.begin(), frame.begin() + std::ptrdiff_t(size))),
              StatusCode::kCorrupt);
  }
  Bytes longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode(longer), StatusCode::kCorrupt);
  for (std::size_t at = 0; at < frame.size(); ++at) {
    Bytes flipped = frame;
    flipped[at] ^= std::byte{0x10};
    ASSERT_EQ(decode(flipped), StatusCode::kCorrupt) << at;
  }
}

}  // namespace driftless::testing
