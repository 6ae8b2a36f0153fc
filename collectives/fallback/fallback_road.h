// SPDX-License-Identifier: Apache-2.0
// A road with another one behind it: its fallback. Versions go by the first road until the
// publisher ranks agree that one of them cannot go on there; from then on all versions go by the
// second.
//
// The leader announces the run on the second road when it goes over: that announcement is the sign
// for receivers. They look for it every kFallbackLook, and then read what the second road lists; of
// the first one they still read versions that they miss, as long as that serves them. The leader
// alone decides: a receiver that cannot read the first road while the trainer publishes there fails
// as it would without a fallback.
//
// A run that is on the second road when the trainer starts goes on there: the first road forgets
// its versions with its processes, and their numbers must not be used again.
#pragma once

#include "collectives/road_kind.h"

namespace driftless {

struct FallbackRoads {
  // How the first road was opened; if not ok, the second is used from the start.
  Result<OpenRoad> first = OpenRoad();
  OpenRoad second = {};
  std::string name = {};   // of the second road: "shared_fs"
  std::string label = {};  // "[P2P]"
  bool leads = false;      // the leading trainer
  // [leading trainer] Whether a run is announced on the second road already.
  std::function<bool()> held = {};
  // The end of a run on the second road; may be empty.
  std::function<Status()> withdraw_end = {};
  std::function<Status(std::string_view text)> tell_end = {};
  std::function<Result<std::optional<std::string>>()> hear_end = {};
  // Is given "<label> <reason>; using <name> instead.", once in each receiver and once in the
  // leading trainer.
  std::function<void(std::string_view line)> say = {};
};

inline constexpr std::chrono::milliseconds kFallbackLook{500};

// Its senders have a SendRoad::fallback().
[[nodiscard]] OpenRoad open_with_fallback(FallbackRoads roads);

}  // namespace driftless
