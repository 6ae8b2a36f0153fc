// SPDX-License-Identifier: Apache-2.0
// The kind of the toy road: a setting, with its help and a check (docs: adding a road).
#pragma once

#include <array>

#include "collectives/road_kind.h"

namespace driftless::testing {

struct ToyOptions {
  std::string map;          // its name: processes that give the same one meet
  unsigned most_parts = 8;  // of a publication
};

inline constexpr std::array kToyKeys = {
    road_key::Rows::key<setting::Text, DRIFTLESS_ROAD_FIELD(ToyOptions, map)>(
        "road.toy.map", "a name", "The map in memory that both sides use")
        .once("road.map"),
    road_key::Rows::key<setting::Count<1, 64>, DRIFTLESS_ROAD_FIELD(ToyOptions, most_parts)>(
        "road.toy.most_parts", "Parts of a publication, at most"),
};

inline Status check_toy(const RoadOptions& options, const RoadUse& use) {
  if (!use.chosen || !options_in<ToyOptions>(options).map.empty()) return {};
  return error(StatusCode::kInvalidArgument, "road.toy.map is missing: road.kind: toy needs one");
}

inline constexpr RoadKind kToyKind{.name = "toy",
                                   .defaults = [] { return RoadOptions(ToyOptions()); },
                                   .keys = kToyKeys,
                                   .check = check_toy};

}  // namespace driftless::testing
