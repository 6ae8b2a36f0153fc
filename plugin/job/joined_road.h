// SPDX-License-Identifier: Apache-2.0
// The parts of a job that a Receiver needs: the road, its options from the configuration, its
// metrics and the end of the run.
//
//   JoinedRoad joined = join_road(config, process, id, deadline);
//   joined.options.pause = ...;
//   Receiver::open(joined.options, *joined.road, target, deadline);
#pragma once

#include "plugin/job/job_process.h"
#include "plugin/observe/record_fanout.h"

namespace driftless {

struct JoinedRoad {
  ReceiverOptions options;  // they keep the process and the road alive
  ReceiveRoad* road = nullptr;
  RecordFanout* records = nullptr;  // receives its commits; kept alive by the options, too
};

// Reads a configuration: `config` is a file's path, or the text itself if it has several lines or a
// key.
[[nodiscard]] Result<Config> read_config(FileSystem& fs, const std::string& config,
                                         std::span<const std::string> sets);
// Collective (JobProcess::receiver()). `id`: its name on the road; none: made from configuration
// and place, and unique among the receivers of this process. That id is free again once options and
// receiver are destroyed, so a receiver that is reopened keeps its id.
[[nodiscard]] Result<JoinedRoad> join_road(const Config& config,
                                           std::shared_ptr<JobProcess> process,
                                           const std::optional<std::string>& id,
                                           const Deadline& deadline);

}  // namespace driftless
