// SPDX-License-Identifier: Apache-2.0
// RecordFanout: passes each record to every sink that it owns, in the order in which they were
// added. A process pushes all its records into one RecordFanout. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "plugin/observe/record_sink.h"

namespace driftless {

class RecordFanout final : public RecordSink {
 public:
  [[nodiscard]] bool empty() const { return sinks_.empty(); }
  void keep(std::unique_ptr<RecordSink> sink) { sinks_.push_back(std::move(sink)); }
  void add(const VersionRecord& record) override { each(&RecordSink::add, record); }
  void add(const EngineRecord& record) override { each(&RecordSink::add, record); }
  void replace(std::span<const RolloutRecord> rollouts) override {
    for (const auto& sink : sinks_) sink->replace(rollouts);
  }
  void failed(const Status& status) override {
    for (const auto& sink : sinks_) sink->failed(status);
  }
  void add(const EndRecord& record) override { each(&RecordSink::add, record); }
  // The failures of all sinks, combined.
  [[nodiscard]] Status take_trouble() override {
    Status all;
    for (const auto& sink : sinks_) {
      const Status trouble = sink->take_trouble();
      if (trouble.ok()) continue;
      all = all.ok() ? trouble : error(all.code(), all.message(), "; ", trouble.message());
    }
    return all;
  }

 private:
  template <typename Record>
  void each(void (RecordSink::*take)(const Record&), const Record& record) {
    for (const auto& sink : sinks_) ((*sink).*take)(record);
  }

  std::vector<std::unique_ptr<RecordSink>> sinks_;
};

}  // namespace driftless
