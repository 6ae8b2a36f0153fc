// SPDX-License-Identifier: Apache-2.0
// What a receiver can read, and what it wants of a version: told to the publisher with its reports
// (collectives/road.h carries the text unread). docs/formats/needs.md gives the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash128.h"
#include "core/status.h"
#include "formats/encoding.h"

namespace driftless {

// What is wanted of a tensor: nothing, all, or [begin, begin + size) of one of its dimensions.
struct TensorNeed {
  enum class Kind : std::uint8_t { kNothing = 0, kAll = 1, kSlice = 2 };
  Kind kind = Kind::kAll;
  std::uint32_t dim = 0;
  std::uint64_t begin = 0, size = 0;

  friend auto operator<=>(const TensorNeed&, const TensorNeed&) = default;
};

struct ReceiverNeeds {
  std::vector<Encoding> encodings;  // that it reads
  bool old_values = false;          // it holds the weights before, which an encoding may need
  bool ranges = false;              // it fetches the blocks that it needs, and no others
  Hash128 run = {};                 // that it follows; zero: not said
  Hash128 layout;                   // whose tensors these are
  std::vector<TensorNeed> tensors;  // as the layout; empty: all of everything
  // Of the version that it reports; 0: not known.
  std::uint64_t bytes_per_s = 0;  // that came over the road
  std::uint64_t units_per_s = 0;  // of the weights, as it decoded and proved the version
  // The directory of the checkpoint that it patches, and the host where that lies; empty: it holds
  // weights in memory, or does not say.
  std::string checkpoint, host;
  bool idle = false;  // an agent on whose host nobody takes versions

  friend bool operator==(const ReceiverNeeds&, const ReceiverNeeds&) = default;
};

// Of one that cannot say more than its run: it reads what every receiver does.
[[nodiscard]] ReceiverNeeds unknown_needs(const Hash128& run);

// A directory as receivers announce it: normalized, of a long one the last 512 bytes.
[[nodiscard]] std::string announced_directory(std::string_view path);

// Rounded to a power of the eighth root of 2, 9 % apart, so that it seldom changes.
[[nodiscard]] std::uint64_t rounded_speed(double per_s);

// Compressed. If it would have more than `most_bytes`, without the tensors: it wants everything
// then, as far as anybody knows.
[[nodiscard]] Result<std::string> needs_to_text(const ReceiverNeeds& needs, std::size_t most_bytes);
// Passes over encodings and keys that it does not know. `what` names the receiver in errors.
[[nodiscard]] Result<ReceiverNeeds> parse_needs(std::string_view text, std::string_view what);

}  // namespace driftless
