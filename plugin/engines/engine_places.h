// SPDX-License-Identifier: Apache-2.0
// Where an engine's weights differ from those of a checkpoint: element, rank and parameter.
//
// The ranks report what is in their memory now, whichever version they hold (EngineOp::kRead). The
// search asks first for the shares of all tensors, then for the block digests of the tensors that
// differ, then for the elements of the blocks that differ. Requests contain only names and numbers.
//
// The arguments of each request, and the keys that it adds to each rank's reply:
//
// - tensor "": engine_shares.h's keys, and "suspects": [name, ...]
// - tensor, no units: "block_units": n, "blocks": [digest, ...], "disagree": [block, ...]
// - tensor, first, units: "copies": [copy, ...], each copy of the form
//   [parameter, [[first, units], ...], values, [foreign, ...]]
#pragma once

#include "formats/checkpoint.h"
#include "plugin/engines/engine_shares.h"

namespace driftless {

struct DifferentPlace {
  std::string tensor;
  std::uint64_t position = 0;  // index of the element in the tensor
  std::int64_t rank = 0;
  std::string parameter;        // name in the engine
  std::string value, expected;  // the bits, and the number if the type has one
};
struct DifferentPlaces {
  std::vector<DifferentPlace> places;  // ordered by tensor and position
  bool more = false;                   // there are more places than the limit
  // Tensors whose shares overlap or are incomplete; they were not searched.
  std::vector<std::string> not_compared;
};

// Returns at most `limit` places. `checkpoint` is of the version that the engine should hold;
// tensors that are not in it are not compared. kUnsupported if the engine's workers do not have
// this call.
[[nodiscard]] Result<DifferentPlaces> find_places(EngineTransport& transport,
                                                  const Checkpoint& checkpoint, std::size_t limit,
                                                  PauseState pause);

[[nodiscard]] nlohmann::ordered_json places_to_json(const DifferentPlaces& places);

}  // namespace driftless
