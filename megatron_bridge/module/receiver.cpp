// SPDX-License-Identifier: Apache-2.0
#include "module/receiver.h"

#include <pybind11/stl.h>

#include "module/bindings.h"

namespace driftless::python {
namespace {

using std::chrono::milliseconds;

void bind_update_reports(py::module_& module) {
  using Report = UpdateReport;
  py::class_<Report> report(module, "UpdateReport");
  def_fields(report, "from_version", &Report::from_version, "version", &Report::version, "versions",
             &Report::versions, "anchor", &Report::anchor, "digest", &Report::digest,
             "changed_units", &Report::changed_units, "full_bytes", &Report::full_bytes,
             "delta_bytes", &Report::delta_bytes, "wire_bytes", &Report::wire_bytes, "needed_bytes",
             &Report::needed_bytes, "carrier", &Report::carrier, "fetch_ms", &Report::fetch_ms,
             "stage_ms", &Report::stage_ms, "pause_ms", &Report::pause_ms, "apply_ms",
             &Report::apply_ms, "resume_ms", &Report::resume_ms, "notes", &Report::notes);
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
          "Waits for a newer version and stages it. Returns False if none came in time. Ctrl-C "
          "interrupts it.")
      .def("commit", [](HeldReceiver& held) { return held.call(&Receiver::commit); })
      .def("rollback", [](HeldReceiver& held) { held.call(&Receiver::rollback); })
      .def("report", [](HeldReceiver& held) { held.call(&Receiver::report); })
      .def("leave", [](HeldReceiver& held) { held.call(&Receiver::leave); })
      .def(
          "end", [](HeldReceiver& held) { return held.call(&Receiver::listen_for_end); },
          "The end of the run (run, version, digest), once the trainer has declared it; else None.")
      .def_property_readonly("version", [](HeldReceiver& held) { return held.state().id.version; })
      .def_property_readonly("proven", &HeldReceiver::proven,
                             "Whether the weights have the run's digest of `version`.")
      .def_property_readonly("unproven", &HeldReceiver::unproven,
                             "Why the weights could not yet be proven to be the claimed version. "
                             "None: they are proven, or the target holds no version.")
      .def_property_readonly("staged_version", &HeldReceiver::staged_version,
                             "The version that commit() would write; None: nothing is staged.")
      .def_property_readonly("tensor_digests", &HeldReceiver::tensor_digests,
                             "{name: digest} of all tensors at `version`, from the run's "
                             "announcement and manifests. None: they do not contain them.")
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
