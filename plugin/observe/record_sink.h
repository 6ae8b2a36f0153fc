// SPDX-License-Identifier: Apache-2.0
// RecordSink: receives every record of a process as it is made. The metrics file, the spans file,
// the Prometheus metrics, the status server and a Python callback are sinks.
//
// A sink never fails and never waits: it drops and counts records that it cannot write. One thread
// at a time calls it.
#pragma once

#include <span>

#include "formats/records.h"

namespace driftless {

class RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void add(const VersionRecord& record) = 0;
  virtual void add(const EngineRecord& record) = 0;
  // Replaces the list of the run's receivers; always the whole list.
  virtual void replace(std::span<const RolloutRecord> rollouts) = 0;
  // Reports a failure after which the process goes on: a refused version, a failed call.
  virtual void failed(const Status& status) = 0;
  virtual void add(const EndRecord& record) = 0;
  // The sink's failure, returned once, for the log of the process. Most sinks only count failures.
  [[nodiscard]] virtual Status take_trouble() { return {}; }
};

}  // namespace driftless
