// SPDX-License-Identifier: Apache-2.0
#include "module/group.h"

#include <cstring>
#include <string>
#include <vector>

namespace driftless::python {
namespace {

class PythonGroup final : public Group {
 public:
  PythonGroup(py::object object, PythonFailure& failure)
      : object_(std::move(object)),
        failure_(&failure),
        rank_(object_.attr("rank").cast<unsigned>()),
        size_(object_.attr("size").cast<unsigned>()) {
    if (size_ == 0 || rank_ >= size_) {
      throw StatusError(
          error(StatusCode::kInvalidArgument, "the group has rank ", rank_, " of ", size_));
    }
  }
  PythonGroup(const PythonGroup&) = delete;
  PythonGroup& operator=(const PythonGroup&) = delete;
  ~PythonGroup() override {
    const py::gil_scoped_acquire acquired;
    object_ = py::object();
  }

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return size_; }

  void begin_epoch(std::uint64_t epoch) override {
    mark_ = {epoch, 0};
    const py::gil_scoped_acquire acquired;
    try {
      if (py::hasattr(object_, "begin_epoch")) object_.attr("begin_epoch")(epoch);
    } catch (...) {
      const Status told = failure_->capture("the group's begin_epoch()");
    }
  }

  [[nodiscard]] Result<std::vector<std::string>> gather(std::string_view message,
                                                        const Deadline& deadline) override {
    ++mark_.operation;
    const py::gil_scoped_acquire acquired;
    try {
      const py::object answer = call("gather", message, deadline);
      std::vector<std::string> messages;
      if (rank_ != 0) return messages;
      for (const py::handle part : answer) {
        messages.push_back(take(unmarked(part.cast<std::string>())));
      }
      if (messages.size() == size_) return messages;
      return error(StatusCode::kInvalidArgument, "the group's gather() returned ", messages.size(),
                   " messages on rank 0, expected ", size_);
    } catch (...) {
      return failure_->capture("the group's gather()");
    }
  }

  [[nodiscard]] Result<std::string> broadcast(std::string_view message,
                                              const Deadline& deadline) override {
    ++mark_.operation;
    const py::gil_scoped_acquire acquired;
    try {
      const py::object answer = call("broadcast", rank_ == 0 ? message : "", deadline);
      return unmarked(answer.cast<std::string>());
    } catch (...) {
      return failure_->capture("the group's broadcast()");
    }
  }

 private:
  struct Mark {
    std::uint64_t epoch = 0;
    std::uint64_t operation = 0;
  };

  [[nodiscard]] py::object call(const char* method, std::string_view message,
                                const Deadline& deadline) const {
    std::string bytes(reinterpret_cast<const char*>(&mark_), sizeof(mark_));
    bytes.append(message);
    const double seconds = std::chrono::duration<double>(deadline.remaining()).count();
    return object_.attr(method)(py::bytes(bytes), seconds);
  }

  [[nodiscard]] Result<std::string> unmarked(const std::string& bytes) const {
    Mark theirs;
    if (bytes.size() < sizeof(theirs)) {
      return error(StatusCode::kCorrupt, "a message of ", bytes.size(),
                   " bytes between publisher ranks");
    }
    std::memcpy(&theirs, bytes.data(), sizeof(theirs));
    if (theirs.epoch != mark_.epoch || theirs.operation != mark_.operation) {
      return error(StatusCode::kIo, "publisher rank ", rank_, " is at message ", mark_.epoch, ".",
                   mark_.operation, " and heard ", theirs.epoch, ".", theirs.operation,
                   ": the ranks are out of step after a failure");
    }
    return bytes.substr(sizeof(theirs));
  }

  py::object object_;
  PythonFailure* failure_;
  unsigned rank_, size_;
  Mark mark_;
};

}  // namespace

std::unique_ptr<Group> make_group(const py::object& object, PythonFailure& failure) {
  return std::make_unique<PythonGroup>(object, failure);
}

}  // namespace driftless::python
