// driftless.Receiver.
#include "plugin/receive/receiver.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "module/bindings.h"
#include "module/job.h"
#include "module/target.h"
#include "plugin/job/job_names.h"
#include "plugin/job/metrics.h"
#include "plugin/job/run_end.h"

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
    JobProcess& process = job_->process();
    use_ = target_->in_use().hold("the target");
    options_ = job_->config().receiver;
    options_.id = id.value_or(receiver_id(job_->config(), process, process.rank()));
    options_.pause = callback(pause, "pause");
    options_.resume = callback(resume, "resume");
    options_.before_read = version_callback(before_read, "before_read");
    if (target_->device() != nullptr) options_.pause = pause_and_wait(options_.pause);
    const InUse::Turn turn = job_->in_use().take("the job");
    try {
      open(process, wait);
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
  [[nodiscard]] Receiver& receiver() {
    if (!receiver_) {
      throw StatusError(error(StatusCode::kInvalidArgument, "the receiver is closed"));
    }
    return *receiver_;
  }
  [[nodiscard]] const std::string& id() const { return options_.id; }

  [[nodiscard]] bool stage(milliseconds wait) {
    Receiver& made = receiver();
    const InUse::Turn turn = in_use_.take("the receiver");
    const Deadline deadline = Deadline::after(wait);
    for (;;) {
      const bool news = native_call(failure_, [&] { return made.stage(deadline.sooner(kSlice)); });
      target_->refresh();  // an interrupted commit may have been ended
      if (news || deadline.expired()) return news;
      look_at_signals();
    }
  }

  [[nodiscard]] UpdateReport commit() {
    Receiver& made = receiver();
    const InUse::Turn turn = in_use_.take("the receiver");
    const Refresh after(*target_);
    UpdateReport report = native_call(failure_, [&] { return made.commit(); });
    if (metrics_) {
      const Status written = metrics_->write(metrics_of(report, job_->process().rank()));
      if (!written.ok()) report.notes.push_back(written.to_string());
    }
    return report;
  }

  void simple(Status (Receiver::*call)()) {
    Receiver& made = receiver();
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
    Receiver& made = receiver();
    const InUse::Turn turn = in_use_.take("the receiver");
    return native_call(failure_,
                       [&] { return look_for_end(job_->process(), job_->config(), made.run()); });
  }

  [[nodiscard]] std::optional<std::uint64_t> staged_version() {
    Receiver& made = receiver();
    const InUse::Turn turn = in_use_.take("the receiver");
    return made.staged_version();
  }

  // As of the last call.
  [[nodiscard]] const TargetState& state() {
    static_cast<void>(receiver());
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

  [[nodiscard]] std::function<Status()> callback(const py::object& object, std::string name) {
    if (object.is_none()) return {};
    callbacks_.push_back(object);
    return [this, object = callbacks_.back().ptr(), name = std::move(name)]() -> Status {
      const py::gil_scoped_acquire acquired;
      try {
        py::reinterpret_borrow<py::object>(object)();
        return {};
      } catch (...) {
        return failure_.capture(name);
      }
    };
  }

  [[nodiscard]] std::function<Status(std::uint64_t)> version_callback(const py::object& object,
                                                                      std::string name) {
    if (object.is_none()) return {};
    callbacks_.push_back(object);
    return [this, object = callbacks_.back().ptr(),
            name = std::move(name)](std::uint64_t version) -> Status {
      const py::gil_scoped_acquire acquired;
      try {
        py::reinterpret_borrow<py::object>(object)(version);
        return {};
      } catch (...) {
        return failure_.capture(name);
      }
    };
  }

  // After the pause, what the engine has queued on the weights must be done.
  [[nodiscard]] std::function<Status()> pause_and_wait(std::function<Status()> pause) {
    return [this, pause = std::move(pause)]() -> Status {
      if (pause) DRIFTLESS_RETURN_IF_ERROR(pause());
      const Status waited = target_->wait_for_stream();
      if (waited.ok() || !options_.resume) return waited;
      const Status resumed = options_.resume();
      return waited;
    };
  }

  // Until the run is announced. A wait that is cut for a look at the signals begins again, so the
  // slices grow: a slow road must be able to bring the announcement within one.
  void open(JobProcess& process, milliseconds wait) {
    road_ = native_call(failure_, [&] { return process.receiver(Deadline::after(wait)); });
    const Deadline deadline = Deadline::after(wait);
    for (milliseconds slice = 2 * kSlice;; slice *= 2) {
      Result<std::unique_ptr<Receiver>> made = [&] {
        const py::gil_scoped_release released;
        return Receiver::open(options_, *road_, target_->target(), deadline.sooner(slice));
      }();
      const bool late = made.status().code() == StatusCode::kDeadlineExceeded;
      if (!late || deadline.expired()) {
        receiver_ = python::take(std::move(made));
        break;
      }
      look_at_signals();
    }
    target_->refresh();
    const Config& config = job_->config();
    if (config.metrics_file.empty()) return;
    metrics_.emplace(python::take(
        MetricsWriter::open(filled_in(config.metrics_file, "rollout", process.rank()))));
  }

  void drop_now() {
    {
      const py::gil_scoped_release released;
      receiver_.reset();
      road_.reset();
    }
    use_.reset();
  }

  std::shared_ptr<Job> job_;
  std::shared_ptr<HeldTarget> target_;
  InUse in_use_;
  std::unique_ptr<InUse::Turn> use_;  // of the target, as long as the receiver is open
  PythonFailure failure_;
  std::vector<py::object> callbacks_;
  ReceiverOptions options_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<Receiver> receiver_;
  std::optional<MetricsWriter> metrics_;
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
      .def("rollback", [](HeldReceiver& held) { held.simple(&Receiver::rollback); })
      .def("report", [](HeldReceiver& held) { held.simple(&Receiver::report); })
      .def("leave", [](HeldReceiver& held) { held.simple(&Receiver::leave); })
      .def("end", &HeldReceiver::end)
      .def_property_readonly("id", &HeldReceiver::id)
      .def_property_readonly("state", &HeldReceiver::state)
      .def_property_readonly("version", [](HeldReceiver& held) { return held.state().id.version; })
      .def_property_readonly("staged_version", &HeldReceiver::staged_version)
      .def_property_readonly("digest",
                             [](HeldReceiver& held) { return to_hex(held.state().digest); })
      .def_property_readonly("run",
                             [](HeldReceiver& held) { return to_hex(held.receiver().run()); })
      .def("close", &HeldReceiver::drop)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](HeldReceiver& held, const py::object& type, const py::object&, const py::object&) {
             if (type.is_none()) held.simple(&Receiver::leave);
             held.drop();
           });
}

}  // namespace driftless::python
