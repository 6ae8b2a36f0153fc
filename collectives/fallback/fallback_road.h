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
//
// Another job may use the same place by mistake. So the announcement on the second road names the
// job: a trainer does not start on the run of another job, and a receiver does not follow it. If
// the two roads announce different runs, a receiver that already follows the first road's run stays
// with it, and a receiver that follows none yet fails (kWrongRun).
#pragma once

#include "collectives/road_kind.h"

namespace driftless {

// The content of an announcement; an empty text is unknown.
struct AnnouncedRun {
  std::string run;
  std::string job;  // OpenRoad::job of the trainer that announced it on a second road
};

struct FallbackRoads {
  // The result of opening the first road; if not ok, the second road is used from the start.
  Result<OpenRoad> first = OpenRoad();
  OpenRoad second = {};
  std::string name = {};   // of the second road: "shared_fs"
  std::string label = {};  // "[P2P]"
  bool leads = false;      // the leading trainer
  // [leading trainer] Returns the announcement that is already on the second road. If that cannot
  // be read, the road is not opened: a run there must not go on elsewhere.
  std::function<Result<std::optional<std::string>>()> held = {};
  std::string job = {};        // of this process; empty: unknown
  std::string place_key = {};  // RoadKind::place_key of the second road, for messages
  // Roads do not parse announcements themselves. read() returns nothing if the text is damaged;
  // sign() returns it with the job's name. If they are empty, announcements are not compared.
  std::function<std::optional<AnnouncedRun>(std::string_view run_info)> read = {};
  std::function<std::string(std::string_view run_info, std::string_view job)> sign = {};
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
