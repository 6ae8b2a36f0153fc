// SPDX-License-Identifier: Apache-2.0
// RecordSinks: the sinks that the configuration sets up for a process's records: the metrics file,
// the spans file, and the status server with its metrics. A process pushes its records only into
// records(). One thread at a time; the server has its own threads, which end with it.
#pragma once

#include "plugin/job/job_process.h"
#include "plugin/observe/record_fanout.h"
#include "plugin/observe/run_view.h"
#include "plugin/observe/status_pages.h"

namespace driftless {

class RecordSinks {
 public:
  // `rank`: among the processes of this role. `shows`: this process is the leading trainer or an
  // agent, and so runs the status server.
  [[nodiscard]] static Result<std::unique_ptr<RecordSinks>> open(const Config& config,
                                                                 const JobProcess& process,
                                                                 std::string_view role,
                                                                 unsigned rank, bool shows);
  [[nodiscard]] RecordFanout& records() { return records_; }
  // The data of the status server; null: there is no server.
  [[nodiscard]] RunView* view() { return view_; }

 private:
  RecordSinks() = default;
  [[nodiscard]] Status serve(const Config& config, const JobProcess& process, std::string_view role,
                             unsigned rank);

  RecordFanout records_;
  RunView* view_ = nullptr;             // owned by the list of sinks
  std::unique_ptr<StatusPages> pages_;  // read from view_
  std::unique_ptr<HttpServer> server_;  // answers from pages_
};

// A receiver's report in the form that the trainer shows.
[[nodiscard]] RolloutRecord record_of(const ReceiverReport& report);

}  // namespace driftless
