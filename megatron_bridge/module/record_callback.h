// SPDX-License-Identifier: Apache-2.0
// RecordCallback: gives the records of a job to a function of Python's, as flat dicts. Records are
// made without the GIL, perhaps on another thread; they wait here until the thread that called us
// has the GIL again.
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
  // `function`: None, or it is called with each record.
  explicit RecordCallback(py::object function) : function_(std::move(function)) {}
  // What puts the records of versions and engines here; null without a function.
  [[nodiscard]] std::unique_ptr<RecordSink> sink() const;
  // With the GIL: calls the function with what waits. What it raises is printed, the first time,
  // and goes no further.
  void flush();

 private:
  static constexpr std::size_t kWaiting = 4'096;  // the oldest go first
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
