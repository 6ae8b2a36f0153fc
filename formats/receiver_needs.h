// SPDX-License-Identifier: Apache-2.0
// ReceiverNeeds: the encodings that a receiver reads, and the parts of a version that it wants. The
// receiver sends them to the publisher with its reports; roads do not read the text, which
// docs/formats/needs.md specifies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash128.h"
#include "core/status.h"
#include "formats/encoding.h"

namespace driftless {

// The wanted part of a tensor: nothing, all, or [begin, begin + size) of one of its dimensions.
struct TensorNeed {
  enum class Kind : std::uint8_t { kNothing = 0, kAll = 1, kSlice = 2 };
  Kind kind = Kind::kAll;
  std::uint32_t dim = 0;
  std::uint64_t begin = 0, size = 0;

  friend auto operator<=>(const TensorNeed&, const TensorNeed&) = default;
};

struct ReceiverNeeds {
  std::vector<Encoding> encodings;  // that the receiver reads
  bool old_values = false;  // it holds the weights before a version; some encodings need them
  bool ranges = false;      // it fetches only the blocks that it needs
  Hash128 run = {};         // the run that it follows; zero: unknown
  Hash128 layout;           // the layout of `tensors`
  std::vector<TensorNeed> tensors;  // in the layout's order; empty: all of everything
  // Speeds of the reported version; 0: unknown.
  std::uint64_t bytes_per_s = 0;  // bytes received over the road
  std::uint64_t units_per_s = 0;  // weights decoded and proven
  // The directory of the checkpoint that it patches, and that directory's host. Empty: it holds
  // weights in memory, or does not report this.
  std::string checkpoint, host;
  bool idle = false;  // an agent on whose host no engine or worker takes versions

  friend bool operator==(const ReceiverNeeds&, const ReceiverNeeds&) = default;
};

// The assumed needs of a receiver that reports only its run: the encodings that every receiver
// reads, and all weights.
[[nodiscard]] ReceiverNeeds unknown_needs(const Hash128& run);

// A directory as receivers report it: normalized, and only the last 512 bytes if it is longer.
[[nodiscard]] std::string reported_directory(std::string_view path);

// Rounds to a power of the eighth root of 2 (steps of 9 %), so that the report seldom changes.
[[nodiscard]] std::uint64_t rounded_speed(double per_s);

// The compressed text. If it exceeds `most_bytes`, omits the tensors; the publisher then assumes
// that the receiver wants everything.
[[nodiscard]] Result<std::string> needs_to_text(const ReceiverNeeds& needs, std::size_t most_bytes);
// Ignores unknown encodings and keys. `what` names the receiver in errors.
[[nodiscard]] Result<ReceiverNeeds> parse_needs(std::string_view text, std::string_view what);

}  // namespace driftless
