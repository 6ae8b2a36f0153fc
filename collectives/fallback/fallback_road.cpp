// SPDX-License-Identifier: Apache-2.0
#include "collectives/fallback/fallback_road.h"

#include "collectives/fallback/state.h"

namespace driftless {

OpenRoad open_with_fallback(FallbackRoads roads) {
  auto state = std::make_shared<fallback::State>();
  state->roads = std::move(roads);
  const FallbackRoads& both = state->roads;
  OpenRoad open;
  open.sender = [state] { return fallback::make_sender(state); };
  open.receiver = [state] { return fallback::make_receiver(state); };
  open.threads = both.second.threads && (!both.first.ok() || both.first->threads);
  open.fallback = [state] { return state->used ? state->roads.name : std::string(); };
  open.withdraw_end = both.withdraw_end;
  // Receivers that have not switched yet wait for the end on the first road.
  open.publish_end = [state](std::string_view text) -> Status {
    const FallbackRoads& here = state->roads;
    Status published;
    if (state->used && here.publish_end) published = here.publish_end(text);
    if (here.first.ok() && here.first->publish_end) {
      const Status first = here.first->publish_end(text);
      if (!state->used) published = first;
    }
    return published;
  };
  open.fetch_end = [state]() -> Result<std::optional<std::string>> {
    const FallbackRoads& here = state->roads;
    if (state->used && here.fetch_end) return here.fetch_end();
    if (here.first.ok() && here.first->fetch_end) return here.first->fetch_end();
    return std::optional<std::string>();
  };
  open.close = [state]() -> Status {
    const FallbackRoads& here = state->roads;
    Status closed;
    if (here.first.ok() && here.first->close) closed = here.first->close();
    if (state->used) closed = {};
    return here.second.close ? here.second.close() : closed;
  };
  return open;
}

}  // namespace driftless
