// SPDX-License-Identifier: Apache-2.0
// Where an engine's weights are not those of a checkpoint: element, rank and parameter.
//
// The ranks are asked what lies in their memory now, whatever version they hold or do not hold
// (EngineOp::kRead): first for the shares of all tensors, of those that differ for a digest of each
// block, and of those for the elements themselves. Nothing is sent but names and numbers.
//
//   tensor ""              engine_shares.h's lists, and "suspects": [name, ...]
//   tensor, no units       {"block_units": n, "blocks": [digest, ...], "disagree": [block, ...]}
//   tensor, first, units   {"copies": [[parameter, [[first, units], ...], values, [foreign, ...]],
//                           ...]}                                          beside each rank's reply
#pragma once

#include "formats/checkpoint.h"
#include "plugin/engines/engine_shares.h"

namespace driftless {

struct DifferentPlace {
  std::string tensor;
  std::uint64_t position = 0;  // of the element in the tensor
  std::int64_t rank = 0;
  std::string parameter;        // of the engine
  std::string value, expected;  // bits, and the number if the type has one
};
struct DifferentPlaces {
  std::vector<DifferentPlace> places;  // by tensor and position
  bool more = false;                   // there are others
  // Tensors whose shares overlap or are not all there: not looked for.
  std::vector<std::string> not_compared;
};

// At most `limit` places. `checkpoint` is of the version that the engine should hold; tensors that
// it does not have are not compared. kUnsupported if the engine's workers have no such call.
[[nodiscard]] Result<DifferentPlaces> find_places(EngineTransport& transport,
                                                  const Checkpoint& checkpoint, std::size_t limit,
                                                  PauseState pause);

[[nodiscard]] nlohmann::ordered_json places_to_json(const DifferentPlaces& places);

}  // namespace driftless
