// SPDX-License-Identifier: Apache-2.0
// RecordCallback: passes the records of a job to a Python function, as flat dicts. Records are made
// without the GIL, perhaps on another thread, so they are queued here until the calling thread has
// the GIL again.
#pragma once

#include <pybind11/pybind11.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "plugin/observe/record_sink.h"

namespace driftless::python {

namespace py = pybind11;

class RecordCallback {
 public:
  // `function` is called with each record; None: records are dropped.
  explicit RecordCallback(py::object function) : function_(std::move(function)) {}
  // A sink that queues the records of versions and engines here; null without a function.
  [[nodiscard]] std::unique_ptr<RecordSink> sink() const;
  // Calls the function with the queued records. Its first exception is printed; no exception leaves
  // this call. Needs the GIL.
  void flush();

 private:
  static constexpr std::size_t kWaiting = 4'096;  // records in the queue; the oldest are dropped
  struct Records {
    std::mutex mutex;
    std::deque<std::string> lines;
  };
  class Sink;

  py::object function_;
  std::shared_ptr<Records> records_ = std::make_shared<Records>();
  bool raised_ = false;
};

}  // namespace driftless::python
