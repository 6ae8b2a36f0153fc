// SPDX-License-Identifier: Apache-2.0
// RecordSinks: what the configuration wants done with the records of a process: a file of metrics,
// the status server. A process pushes its records into records() and nowhere else. One thread at a
// time; the server has threads of its own, which end with it.
#pragma once

#include "plugin/job/job_process.h"
#include "plugin/observe/record_fanout.h"
#include "plugin/observe/run_view.h"
#include "plugin/observe/status_pages.h"

namespace driftless {

class RecordSinks {
 public:
  // `rank`: among the processes of this role. `shows`: this process is the leading trainer or an
  // agent, and so has the status server.
  [[nodiscard]] static Result<std::unique_ptr<RecordSinks>> open(const Config& config,
                                                                 const JobProcess& process,
                                                                 std::string_view role,
                                                                 unsigned rank, bool shows);
  [[nodiscard]] RecordFanout& records() { return records_; }
  // What the status server shows; null: there is none.
  [[nodiscard]] RunView* view() { return view_; }

 private:
  RecordSinks() = default;
  [[nodiscard]] Status serve(const Config& config, const JobProcess& process, std::string_view role,
                             unsigned rank);

  RecordFanout records_;
  RunView* view_ = nullptr;             // one of them
  std::unique_ptr<StatusPages> pages_;  // they look at it
  std::unique_ptr<HttpServer> server_;  // it asks them
};

// A receiver's report as the trainer shows it.
[[nodiscard]] RolloutRecord record_of(const ReceiverReport& report);

}  // namespace driftless
