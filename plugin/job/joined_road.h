// SPDX-License-Identifier: Apache-2.0
// What a Receiver takes of a job: the road, its options by the configuration, its metrics and the
// end of the run.
//
//   JoinedRoad joined = join_road(config, process, id, deadline);
//   joined.options.pause = ...;
//   Receiver::open(joined.options, *joined.road, target, deadline);
#pragma once

#include "plugin/job/job_process.h"
#include "plugin/observe/record_fanout.h"

namespace driftless {

struct JoinedRoad {
  ReceiverOptions options;  // they keep the process and the road
  ReceiveRoad* road = nullptr;
  RecordFanout* records = nullptr;  // of its commits; they keep it, too
};

// A configuration by its file's path, or the text itself if that has several lines or a key.
[[nodiscard]] Result<Config> read_config(FileSystem& fs, const std::string& config,
                                         std::span<const std::string> sets);
// Collective (JobProcess::receiver()). `id`: on the road; none: by configuration and place, and no
// other receiver of this process has it. That id is free again once options and receiver are gone,
// so that a receiver that is opened anew keeps its id.
[[nodiscard]] Result<JoinedRoad> join_road(const Config& config,
                                           std::shared_ptr<JobProcess> process,
                                           const std::optional<std::string>& id,
                                           const Deadline& deadline);

}  // namespace driftless
