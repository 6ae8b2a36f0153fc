// SPDX-License-Identifier: Apache-2.0
#include "module/record_callback.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/environment.h"
#include "plugin/job/metrics.h"

namespace driftless::python {

// Records are flat, except for the list of tensors, which is left out.
class RecordCallback::Sink final : public RecordSink {
 public:
  explicit Sink(std::shared_ptr<Records> records) : records_(std::move(records)) {}
  void add(const VersionRecord& record) override { put(to_json(record)); }
  void add(const EngineRecord& record) override { put(to_json(record)); }
  void replace(std::span<const RolloutRecord> /*rollouts*/) override {}
  void failed(const Status& /*status*/) override {}
  void add(const EndRecord& /*record*/) override {}

 private:
  void put(nlohmann::ordered_json record) {
    record.erase("most_changed");
    std::string line = json_line(record);
    const std::scoped_lock lock(records_->mutex);
    if (records_->lines.size() == kWaiting) records_->lines.pop_front();
    records_->lines.push_back(std::move(line));
  }
  std::shared_ptr<Records> records_;
};

std::unique_ptr<RecordSink> RecordCallback::sink() const {
  if (function_.is_none()) return nullptr;
  return std::make_unique<Sink>(records_);
}

void RecordCallback::flush() {
  std::deque<std::string> lines;
  {
    const std::scoped_lock lock(records_->mutex);
    lines.swap(records_->lines);
  }
  for (const std::string& line : lines) {
    try {
      function_(py::module_::import("json").attr("loads")(line));
    } catch (py::error_already_set& raised) {
      if (raised.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // raised again later
      if (!std::exchange(raised_, true)) {
        environment().log("on_record raised; later exceptions of it are not printed");
        raised.discard_as_unraisable(function_);
      }
    }
  }
}

}  // namespace driftless::python
