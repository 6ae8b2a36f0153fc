// SPDX-License-Identifier: Apache-2.0
// The head of a frame as a receiver fetches it: header, table and trailer.
#pragma once

#include "formats/frame.h"

namespace driftless::testing {

inline std::vector<std::byte> frame_head_of(const FrameInfo& info,
                                            std::span<const std::byte> frame) {
  const auto first = frame.first(kFrameHeaderBytes);
  const auto rest = frame.subspan(frame_places(info).table, info.table_bytes + kFrameTrailerBytes);
  std::vector<std::byte> head(first.begin(), first.end());
  head.insert(head.end(), rest.begin(), rest.end());
  return head;
}

}  // namespace driftless::testing
