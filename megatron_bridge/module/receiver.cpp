// SPDX-License-Identifier: Apache-2.0
// driftless.Receiver: a ReceiverSession whose job and target Python holds.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "module/bindings.h"
#include "module/job.h"
#include "module/target.h"
#include "plugin/job/receiver_session.h"

namespace driftless::python {
namespace {

using std::chrono::milliseconds;

// How long a wait goes on before Python may look at its signals.
constexpr milliseconds kSlice{100};

class HeldReceiver final : public JobMember {
 public:
  HeldReceiver(std::shared_ptr<Job> job, std::shared_ptr<HeldTarget> target,
               const std::optional<std::string>& id, const py::object& pause,
               const py::object& resume, const py::object& before_read, milliseconds wait)
      : job_(std::move(job)), target_(std::move(target)) {
    if (job_->role() != JobRole::kRollout) {
      throw StatusError(error(StatusCode::kInvalidArgument,
                              "a receiver needs a job of role "
                              "rollout, this one is ",
                              to_string(job_->role())));
    }
    SessionOptions options;
    options.id = id;
    options.pause = callback(pause, "pause");
    options.resume = callback(resume, "resume");
    options.before_read = callback<std::uint64_t>(before_read, "before_read");
    if (target_->device() != nullptr) {
      options.pause = pause_and_wait(options.pause, options.resume);
    }
    const std::shared_ptr<JobProcess>& process = job_->shared_process();
    use_ = target_->in_use().hold("the target");
    const InUse::Turn turn = job_->in_use().take("the job");
    try {
      session_.emplace(job_->config(), process, std::move(options));
      open(wait);
    } catch (...) {
      drop_now();
      throw;
    }
  }
  HeldReceiver(const HeldReceiver&) = delete;
  HeldReceiver& operator=(const HeldReceiver&) = delete;
  ~HeldReceiver() override { drop_now(); }

  void drop() override {
    const InUse::Turn turn = in_use_.take("the receiver");
    drop_now();
  }
  [[nodiscard]] ReceiverSession& session() {
    if (!session_) {
      throw StatusError(error(StatusCode::kInvalidArgument, "the receiver is closed"));
    }
    return *session_;
  }
  [[nodiscard]] const std::string& id() const { return id_; }

  [[nodiscard]] bool stage(milliseconds wait) {
    ReceiverSession& made = session();
    const InUse::Turn turn = in_use_.take("the receiver");
    const Deadline deadline = Deadline::after(wait);
    for (;;) {
      const bool staged =
          native_call(failure_, [&] { return made.stage(deadline.sooner(kSlice)); });
      target_->refresh();  // an interrupted commit may have been ended
      if (staged || deadline.expired()) return staged;
      look_at_signals();
    }
  }

  [[nodiscard]] UpdateReport commit() {
    ReceiverSession& made = session();
    const InUse::Turn turn = in_use_.take("the receiver");
    const Refresh after(*target_);
    return native_call(failure_, [&] { return made.commit(); });
  }

  void simple(Status (ReceiverSession::*call)()) {
    ReceiverSession& made = session();
    const InUse::Turn turn = in_use_.take("the receiver");
    const Refresh after(*target_);
    failure_.forget();
    Status done;
    {
      const py::gil_scoped_release released;
      done = (made.*call)();
    }
    if (!done.ok()) failure_.rethrow();
    check(std::move(done));
  }

  [[nodiscard]] std::optional<EndOfRun> end() {
    ReceiverSession& made = session();
    const InUse::Turn turn = in_use_.take("the receiver");
    return native_call(failure_, [&] { return made.listen_for_end(); });
  }

  [[nodiscard]] std::optional<std::uint64_t> staged_version() {
    ReceiverSession& made = session();
    const InUse::Turn turn = in_use_.take("the receiver");
    return made.staged_version();
  }

  // As of the last call.
  [[nodiscard]] const TargetState& state() {
    static_cast<void>(session());
    return target_->state();
  }

 private:
  // However the call ends.
  struct Refresh {
    explicit Refresh(HeldTarget& held) : target(held) {}
    Refresh(const Refresh&) = delete;
    Refresh& operator=(const Refresh&) = delete;
    ~Refresh() { target.refresh(); }
    HeldTarget& target;
  };

  static void look_at_signals() {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

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

  // After the pause, what the engine has queued on the weights must be done.
  [[nodiscard]] std::function<Status()> pause_and_wait(std::function<Status()> pause,
                                                       std::function<Status()> resume) {
    return [this, pause = std::move(pause), resume = std::move(resume)]() -> Status {
      if (pause) DRIFTLESS_RETURN_IF_ERROR(pause());
      const Status waited = target_->wait_for_stream();
      if (waited.ok() || !resume) return waited;
      const Status resumed = resume();
      return waited;
    };
  }

  // Until the run is announced. A wait that is cut for a look at the signals begins again, so the
  // slices grow: a slow road must be able to bring the announcement within one.
  void open(milliseconds wait) {
    const Deadline deadline = Deadline::after(wait);
    check(without_gil([&] { return session_->join(Deadline::after(wait)); }));
    for (milliseconds slice = 2 * kSlice;; slice *= 2) {
      Status opened =
          without_gil([&] { return session_->open(target_->target(), deadline.sooner(slice)); });
      if (opened.code() == StatusCode::kDeadlineExceeded && !deadline.expired()) {
        look_at_signals();
        continue;
      }
      if (!opened.ok()) failure_.rethrow();
      check(std::move(opened));
      break;
    }
    id_ = session_->id();
    target_->refresh();
  }

  template <typename Work>
  static Status without_gil(Work&& work) {
    const py::gil_scoped_release released;
    return work();
  }

  void drop_now() {
    {
      const py::gil_scoped_release released;
      session_.reset();
    }
    use_.reset();
  }

  std::shared_ptr<Job> job_;
  std::shared_ptr<HeldTarget> target_;
  InUse in_use_;
  std::unique_ptr<InUse::Turn> use_;  // of the target, as long as the receiver is open
  PythonFailure failure_;
  std::vector<py::object> callbacks_;
  std::string id_;
  std::optional<ReceiverSession> session_;
};

void bind_update_report(py::module_& module) {
  py::class_<UpdateReport>(module, "UpdateReport")
      .def_readonly("from_version", &UpdateReport::from_version)
      .def_readonly("version", &UpdateReport::version)
      .def_readonly("versions", &UpdateReport::versions)
      .def_readonly("anchor", &UpdateReport::anchor)
      .def_property_readonly("digest",
                             [](const UpdateReport& report) { return to_hex(report.digest); })
      .def_readonly("changed_units", &UpdateReport::changed_units)
      .def_readonly("full_bytes", &UpdateReport::full_bytes)
      .def_readonly("delta_bytes", &UpdateReport::delta_bytes)
      .def_readonly("wire_bytes", &UpdateReport::wire_bytes)
      .def_readonly("fetch_ms", &UpdateReport::fetch_ms)
      .def_readonly("stage_ms", &UpdateReport::stage_ms)
      .def_readonly("pause_ms", &UpdateReport::pause_ms)
      .def_readonly("apply_ms", &UpdateReport::apply_ms)
      .def_readonly("resume_ms", &UpdateReport::resume_ms)
      .def_readonly("notes", &UpdateReport::notes)
      .def("__repr__", [](const UpdateReport& report) {
        return concat("UpdateReport(version=", report.version,
                      ", from_version=", report.from_version,
                      ", changed_units=", report.changed_units, ")");
      });
  py::class_<EndOfRun>(module, "EndOfRun")
      .def_property_readonly("run", [](const EndOfRun& end) { return to_hex(end.run); })
      .def_readonly("version", &EndOfRun::version)
      .def_property_readonly("digest", [](const EndOfRun& end) { return to_hex(end.digest); });
}

}  // namespace

void bind_receiver(py::module_& module) {
  bind_update_report(module);
  py::class_<HeldReceiver, std::shared_ptr<HeldReceiver>>(module, "Receiver")
      .def(py::init([](const std::shared_ptr<Job>& job, const std::shared_ptr<HeldTarget>& target,
                       const std::optional<std::string>& id, const py::object& pause,
                       const py::object& resume, const py::object& timeout_s,
                       const py::object& before_read) {
             const milliseconds wait =
                 milliseconds_or(timeout_s, job->config().connect_deadline, "timeout_s");
             auto made =
                 std::make_shared<HeldReceiver>(job, target, id, pause, resume, before_read, wait);
             job->enter(made);
             return made;
           }),
           py::arg("job"), py::arg("target"), py::arg("id") = py::none(),
           py::arg("pause") = py::none(), py::arg("resume") = py::none(),
           py::arg("timeout_s") = py::none(), py::arg("before_read") = py::none())
      .def(
          "stage",
          [](HeldReceiver& held, double timeout_s) {
            return held.stage(milliseconds_of(timeout_s, "timeout_s"));
          },
          py::arg("timeout_s") = 0.0)
      .def("commit", &HeldReceiver::commit)
      .def("rollback", [](HeldReceiver& held) { held.simple(&ReceiverSession::rollback); })
      .def("report", [](HeldReceiver& held) { held.simple(&ReceiverSession::report); })
      .def("leave", [](HeldReceiver& held) { held.simple(&ReceiverSession::leave); })
      .def("end", &HeldReceiver::end)
      .def_property_readonly("id", &HeldReceiver::id)
      .def_property_readonly("state", &HeldReceiver::state)
      .def_property_readonly("version", [](HeldReceiver& held) { return held.state().id.version; })
      .def_property_readonly("staged_version", &HeldReceiver::staged_version)
      .def_property_readonly("digest",
                             [](HeldReceiver& held) { return to_hex(held.state().digest); })
      .def_property_readonly("run", [](HeldReceiver& held) { return to_hex(held.session().run()); })
      .def("close", &HeldReceiver::drop)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](HeldReceiver& held, const py::object& type, const py::object&, const py::object&) {
             if (type.is_none()) held.simple(&ReceiverSession::leave);
             held.drop();
           });
}

}  // namespace driftless::python
