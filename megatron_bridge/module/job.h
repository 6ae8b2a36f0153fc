// SPDX-License-Identifier: Apache-2.0
// Job: this process as a member of a job. Its publishers and receivers share it.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "module/errors.h"
#include "module/record_callback.h"
#include "plugin/job/config.h"
#include "plugin/job/job_process.h"

namespace driftless::python {

// Refuses a second call while one is in progress: an object of the library is for one thread at a
// time, but calls release the GIL, so another thread or a callback could call it.
class InUse {
 public:
  class Turn {
   public:
    Turn(std::atomic_flag& flag, std::string_view what);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { flag_.clear(); }

   private:
    std::atomic_flag& flag_;
  };
  [[nodiscard]] Turn take(std::string_view what) { return {flag_, what}; }
  [[nodiscard]] std::unique_ptr<Turn> hold(std::string_view what) {
    return std::make_unique<Turn>(flag_, what);
  }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// An object that uses a job's roads, and is dropped before the job closes.
class JobMember {
 public:
  virtual ~JobMember() = default;
  // Drops the object; ok if it was dropped before. Returns a failure of background work that was
  // not reported yet. Needs the GIL.
  virtual Status drop() = 0;
};

class Job {
 public:
  Job(Config config, JobRole role, const Launch& launch, py::object on_record);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] JobRole role() const { return role_; }
  [[nodiscard]] bool launched() const { return launched_; }
  // The process; refused once the job is closed.
  [[nodiscard]] JobProcess& process() { return *shared_process(); }
  [[nodiscard]] const std::shared_ptr<JobProcess>& shared_process();
  void enter(const std::weak_ptr<JobMember>& member) { members_.push_back(member); }
  void close(std::chrono::milliseconds wait);
  // Leaves after an exception, without waiting for other processes.
  void leave();
  [[nodiscard]] bool closed() const { return process_ == nullptr; }
  [[nodiscard]] InUse& in_use() { return in_use_; }
  // Receives the records of the job's publishers and receivers.
  [[nodiscard]] RecordCallback& on_record() { return on_record_; }
  // A call of the process, without the GIL.
  template <typename Work>
  auto call(Work&& work) {
    JobProcess& made = process();
    const InUse::Turn turn = in_use_.take("the job");
    return take(without_gil([&] { return std::invoke(work, made); }));
  }
  // The timeout that Python passed, or the configuration's connect deadline.
  [[nodiscard]] std::chrono::milliseconds wait_or(std::optional<double> timeout_s) const;

 private:
  void let_go();
  // Drops all members; returns the first failure.
  Status drop_members();

  Config config_;
  JobRole role_;
  bool launched_;
  RecordCallback on_record_;
  InUse in_use_;
  std::shared_ptr<JobProcess> process_;
  std::vector<std::weak_ptr<JobMember>> members_;
};

// If the configuration names a store that Python implements (hf://...), opens it and puts it into
// the configuration.
void open_python_store(Config& config);

// Converts seconds to milliseconds. Fails with kInvalidArgument if `seconds` is negative, NaN, or
// longer than kMaxDuration.
[[nodiscard]] std::chrono::milliseconds milliseconds_of(double seconds, std::string_view what);

// A session of the library (a publisher, receiver or agent) that Python holds.
template <typename Session>
class HeldSession : public JobMember {
 public:
  HeldSession(const HeldSession&) = delete;
  HeldSession& operator=(const HeldSession&) = delete;

  [[nodiscard]] Session& session() {
    if (session_ == nullptr) fail(StatusCode::kInvalidArgument, "the ", name_, " is closed");
    if (forked()) {
      fail(StatusCode::kInvalidArgument, "the ", name_, " belongs to process ", process_,
           ", from which this one was forked: make a job and a ", name_, " here");
    }
    return *session_;
  }
  // Calls the session without the GIL. An exception of a Python callback is raised again.
  template <typename Work>
  auto call(Work&& work) {
    Session& made = session();
    const InUse::Turn turn = take_turn();
    return native_call([&] { return std::invoke(work, made); });
  }
  Status drop() override {
    if (forked()) {  // a call of another thread of the parent never ends here: do not wait for it
      drop_now();
      return {};
    }
    const InUse::Turn turn = take_turn();
    drop_now();
    return {};
  }

 protected:
  HeldSession(std::shared_ptr<Job> job, JobRole role, std::string_view name)
      : job_(std::move(job)), name_(name) {
    if (job_->role() == role) return;
    fail(StatusCode::kInvalidArgument, "a ", name, " needs a job of role ", to_string(role),
         ", this one is ", to_string(job_->role()));
  }
  ~HeldSession() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    drop_now();
  }

  // Called after every call, with the GIL. Copies the state that Python may read while another
  // thread's call is in progress.
  virtual void refresh() = 0;
  [[nodiscard]] InUse::Turn take_turn() { return in_use_.take(concat("the ", name_)); }
  [[nodiscard]] InUse& in_use() { return in_use_; }
  template <typename Work>
  auto native_call(Work&& work) {
    return python::native_call(failure_, work, [&] { refresh(); });
  }
  // Whether this process was forked from the one that made the session. A fork has neither the
  // session's threads nor its road, and must not touch them.
  [[nodiscard]] bool forked() const { return ::getpid() != process_; }
  void drop_now() {
    std::unique_ptr<Session> dropped = std::move(session_);
    if (forked()) static_cast<void>(dropped.release());
    const GilReleased released;
    dropped.reset();
  }
  // Wraps a Python function, so that it can be called without the GIL. Empty if `object` is None.
  template <typename... Arguments>
  [[nodiscard]] std::function<Status(Arguments...)> callback(const py::object& object,
                                                             std::string name) {
    if (object.is_none()) return {};
    callbacks_.push_back(object);
    return [this, object = callbacks_.back().ptr(),
            name = std::move(name)](Arguments... arguments) -> Status {
      const py::gil_scoped_acquire acquired;
      try {
        py::reinterpret_borrow<py::object>(object)(arguments...);
        return {};
      } catch (...) {
        return failure_.capture(name);
      }
    };
  }

  std::shared_ptr<Job> job_;
  PythonFailure failure_;
  std::vector<py::object> callbacks_;
  std::unique_ptr<Session> session_;

 private:
  std::string_view name_;
  const pid_t process_ = ::getpid();
  InUse in_use_;
};

}  // namespace driftless::python
