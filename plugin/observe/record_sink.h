// SPDX-License-Identifier: Apache-2.0
// RecordSink: receives every record of a process as it is made. The metrics file, the spans file,
// Prometheus' metrics, the status server and a Python callback are sinks.
//
// A sink never fails and never waits: what it cannot write it drops and counts. One thread at a
// time calls it.
#pragma once

#include <span>

#include "formats/records.h"

namespace driftless {

class RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void add(const VersionRecord& record) = 0;
  virtual void add(const EngineRecord& record) = 0;
  // The receivers of the run, as of now: the whole list each time.
  virtual void replace(std::span<const RolloutRecord> rollouts) = 0;
  // A failure after which the process goes on: a version that was refused, a call that failed.
  virtual void failed(const Status& status) = 0;
  virtual void add(const EndRecord& record) = 0;
  // What the sink could not write, once, for the log of the process. Most sinks only count it.
  [[nodiscard]] virtual Status take_trouble() { return {}; }
};

}  // namespace driftless
