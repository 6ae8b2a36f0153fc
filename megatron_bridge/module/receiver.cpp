// SPDX-License-Identifier: Apache-2.0
// driftless.Receiver: a receiver whose job and target Python holds.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>

#include "module/bindings.h"
#include "module/job.h"
#include "module/target.h"
#include "plugin/job/joined_road.h"

namespace driftless::python {
namespace {

using std::chrono::milliseconds;

// How long a wait goes on before Python may look at its signals.
constexpr milliseconds kSlice{100};

class HeldReceiver final : public HeldSession<Receiver> {
 public:
  HeldReceiver(std::shared_ptr<Job> job, std::shared_ptr<HeldTarget> target,
               const std::optional<std::string>& id, const py::object& pause,
               const py::object& resume, const py::object& before_read,
               const std::string& take_over, milliseconds wait)
      : HeldSession(std::move(job), JobRole::kRollout, "receiver"), target_(std::move(target)) {
    ReceiverOptions options;
    options.pause = callback(pause, "pause");
    options.resume = callback(resume, "resume");
    options.before_read = callback<std::uint64_t>(before_read, "before_read");
    if (!take_over.empty()) options.take_over = take(hash128_from_hex(take_over));
    if (target_->device() != nullptr) {
      options.pause = pause_and_wait(options.pause, options.resume);
    }
    const std::shared_ptr<JobProcess>& process = job_->shared_process();
    const InUse::Turn turn = job_->in_use().take("the job");
    use_ = target_->in_use().hold("the target");
    target_->set_user(&in_use());
    try {
      open(process, id, options, wait);
    } catch (...) {
      drop_now();
      let_go();
      throw;
    }
  }
  HeldReceiver(const HeldReceiver&) = delete;
  HeldReceiver& operator=(const HeldReceiver&) = delete;
  ~HeldReceiver() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    drop_now();
    let_go();
  }

  Status drop() override {
    Status dropped = HeldSession::drop();
    let_go();
    return dropped;
  }
  [[nodiscard]] const std::string& id() const { return id_; }

  [[nodiscard]] bool stage(milliseconds wait) {
    Receiver& made = session();
    const InUse::Turn turn = take_turn();
    const Deadline deadline = Deadline::after(wait);
    for (;;) {
      const bool staged = native_call([&] { return made.stage(deadline.sooner(kSlice)); });
      if (staged || deadline.expired()) return staged;
      look_at_signals();
    }
  }

  [[nodiscard]] std::optional<std::uint64_t> staged_version() {
    return call([](Receiver& made) -> Result<std::optional<std::uint64_t>> {
      return made.staged_version();
    });
  }

  // By name; none if the run does not say them.
  [[nodiscard]] std::optional<std::map<std::string, std::string>> tensor_digests() {
    return call([](Receiver& made) -> Result<std::optional<std::map<std::string, std::string>>> {
      const std::vector<Digest>& digests = made.tensor_digests();
      if (digests.empty()) return std::optional<std::map<std::string, std::string>>();
      std::map<std::string, std::string> named;
      for (std::size_t i = 0; i < digests.size(); ++i) {
        named.emplace(made.layout()[i].name, to_hex(digests[i]));
      }
      return std::optional(std::move(named));
    });
  }

  // Why nothing proves what the weights are said to be; none: they are proven, or no version.
  [[nodiscard]] std::optional<std::string> unproven() {
    return call([](Receiver& made) -> Result<std::optional<std::string>> {
      if (made.unproven().empty()) return std::optional<std::string>();
      return std::optional(made.unproven());
    });
  }
  [[nodiscard]] bool proven() { return state().valid && !unproven(); }

  // As of the last call.
  [[nodiscard]] const TargetState& state() {
    static_cast<void>(session());
    return target_->state();
  }

 private:
  void refresh() override { target_->refresh(); }
  void let_go() {
    if (use_) target_->set_user(nullptr);
    use_.reset();
  }

  static void look_at_signals() {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
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

  // Without the GIL, which the road's threads may wait for.
  struct Dropped {
    JoinedRoad& joined;
    ~Dropped() {
      const GilReleased released;
      joined = {};
    }
  };

  // Until the run is announced. A wait that is cut for a look at the signals begins again, so the
  // slices grow: a slow road must be able to bring the announcement within one.
  void open(const std::shared_ptr<JobProcess>& process, const std::optional<std::string>& id,
            const ReceiverOptions& callbacks, milliseconds wait) {
    const Deadline deadline = Deadline::after(wait);
    JoinedRoad joined = take(
        without_gil([&] { return join_road(job_->config(), process, id, Deadline::after(wait)); }));
    const Dropped dropped{joined};
    joined.options.pause = callbacks.pause;
    joined.options.resume = callbacks.resume;
    joined.options.before_read = callbacks.before_read;
    joined.options.take_over = callbacks.take_over;
    for (milliseconds slice = 2 * kSlice;; slice *= 2) {
      auto opened = without_gil([&] {
        return Receiver::open(joined.options, *joined.road, target_->target(),
                              deadline.sooner(slice));
      });
      if (opened.status().code() == StatusCode::kDeadlineExceeded && !deadline.expired()) {
        look_at_signals();
        continue;
      }
      if (!opened.ok()) failure_.rethrow();
      session_ = take(std::move(opened));
      break;
    }
    id_ = session_->id();
    refresh();
    if (session_->unproven().empty()) return;
    const std::string text = concat(session_->unproven(), "; it is reported as unproven");
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw py::error_already_set();
  }

  std::shared_ptr<HeldTarget> target_;
  std::unique_ptr<InUse::Turn> use_;  // of the target, as long as the receiver is open
  std::string id_;
};

void bind_update_reports(py::module_& module) {
  using Report = UpdateReport;
  py::class_<Report> report(module, "UpdateReport");
  def_fields(report, "from_version", &Report::from_version, "version", &Report::version, "versions",
             &Report::versions, "anchor", &Report::anchor, "digest", &Report::digest,
             "changed_units", &Report::changed_units, "full_bytes", &Report::full_bytes,
             "delta_bytes", &Report::delta_bytes, "wire_bytes", &Report::wire_bytes, "needed_bytes",
             &Report::needed_bytes, "fetch_ms", &Report::fetch_ms, "stage_ms", &Report::stage_ms,
             "pause_ms", &Report::pause_ms, "apply_ms", &Report::apply_ms, "resume_ms",
             &Report::resume_ms, "notes", &Report::notes);
  report.def("__repr__", [](const Report& self) {
    return concat("UpdateReport(version=", self.version, ", from_version=", self.from_version,
                  ", changed_units=", self.changed_units, ")");
  });
  py::class_<EndOfRun> end(module, "EndOfRun");
  def_fields(end, "run", &EndOfRun::run, "version", &EndOfRun::version, "digest",
             &EndOfRun::digest);
}

}  // namespace

void bind_receiver(py::module_& module) {
  bind_update_reports(module);
  py::class_<HeldReceiver, std::shared_ptr<HeldReceiver>> receiver(
      module, "Receiver",
      "The rollout's side: follows a road and keeps a target at its newest version.");
  def_fields(receiver, "id", &HeldReceiver::id, "state", &HeldReceiver::state);
  receiver
      .def(py::init([](const std::shared_ptr<Job>& job, const std::shared_ptr<HeldTarget>& target,
                       const std::optional<std::string>& id, const py::object& pause,
                       const py::object& resume, std::optional<double> timeout_s,
                       const py::object& before_read, const std::string& take_over) {
             auto made = std::make_shared<HeldReceiver>(job, target, id, pause, resume, before_read,
                                                        take_over, job->wait_or(timeout_s));
             job->enter(made);
             return made;
           }),
           py::arg("job"), py::arg("target"), py::arg("id") = py::none(),
           py::arg("pause") = py::none(), py::arg("resume") = py::none(),
           py::arg("timeout_s") = py::none(), py::arg("before_read") = py::none(),
           py::arg("take_over") = "")
      .def(
          "stage",
          [](HeldReceiver& held, double timeout_s) {
            return held.stage(milliseconds_of(timeout_s, "timeout_s"));
          },
          py::arg("timeout_s") = 0.0,
          "Waits for something newer and makes it ready; False: nothing came. Ctrl-C ends it.")
      .def("commit", [](HeldReceiver& held) { return held.call(&Receiver::commit); })
      .def("rollback", [](HeldReceiver& held) { held.call(&Receiver::rollback); })
      .def("report", [](HeldReceiver& held) { held.call(&Receiver::report); })
      .def("leave", [](HeldReceiver& held) { held.call(&Receiver::leave); })
      .def(
          "end", [](HeldReceiver& held) { return held.call(&Receiver::listen_for_end); },
          "The trainer's last word, once it has come.")
      .def_property_readonly("version", [](HeldReceiver& held) { return held.state().id.version; })
      .def_property_readonly("proven", &HeldReceiver::proven,
                             "Whether the weights are `version` by the run's own digest of it.")
      .def_property_readonly("unproven", &HeldReceiver::unproven,
                             "Why nothing proves yet that they are the version that they are said "
                             "to be; None: they are proven, or no version.")
      .def_property_readonly("staged_version", &HeldReceiver::staged_version,
                             "What commit() would bring; None: nothing is staged.")
      .def_property_readonly("tensor_digests", &HeldReceiver::tensor_digests,
                             "{name: digest} of all tensors at `version`, as the run says: its "
                             "announcement and the manifests. None: it does not say.")
      .def_property_readonly("digest",
                             [](HeldReceiver& held) { return to_hex(held.state().digest); })
      .def_property_readonly("run", [](HeldReceiver& held) { return to_hex(held.session().run()); })
      .def("close", [](HeldReceiver& held) { check(held.drop()); })
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](HeldReceiver& held, const py::object& type, const py::object&, const py::object&) {
             if (type.is_none()) held.call(&Receiver::leave);
             check(held.drop());
           });
}

}  // namespace driftless::python
