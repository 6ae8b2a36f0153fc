// SPDX-License-Identifier: Apache-2.0
// A road with a fallback, a second road. Versions use the first road until the publisher ranks
// agree that one of them cannot continue there; from then on all versions use the second road.
//
// When the leader switches, it announces the run on the second road. Receivers check for this
// announcement every kFallbackLook. Once it exists, they read the versions that the second road
// lists, and still read missing versions from the first road as long as it serves them. Only the
// publishers decide: a receiver that cannot read the first road while they publish there
// fails as it would without a fallback.
//
// If a run is already on the second road when the trainer starts, it continues there: the first
// road loses its versions when its processes end, and their numbers must not be used again.
#pragma once

#include "collectives/road_kind.h"

namespace driftless {

struct FallbackRoads {
  // The result of opening the first road; if not ok, the second road is used from the start.
  Result<OpenRoad> first = OpenRoad();
  OpenRoad second = {};
  std::string name = {};   // of the second road: "shared_fs"
  std::string label = {};  // "[P2P]"
  bool leads = false;      // the leading trainer
  // [leading trainer] Returns whether a run is already announced on the second road. If that cannot
  // be read, the road is not opened: a run there must not go on elsewhere.
  std::function<Result<bool>()> held = {};
  // The end of a run on the second road; the functions may be empty.
  std::function<Status()> withdraw_end = {};
  std::function<Status(std::string_view text)> publish_end = {};
  std::function<Result<std::optional<std::string>>()> fetch_end = {};
  // Receives "<label> <reason>; using <name> instead.", once in each receiver and once in the
  // leading trainer.
  std::function<void(std::string_view line)> log = {};
};

inline constexpr std::chrono::milliseconds kFallbackLook{500};

// Opens a road whose senders return a SendRoad::fallback().
[[nodiscard]] OpenRoad open_with_fallback(FallbackRoads roads);

}  // namespace driftless
