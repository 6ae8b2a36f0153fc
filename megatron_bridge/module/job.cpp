// SPDX-License-Identifier: Apache-2.0
#include "module/job.h"

#include <pybind11/stl.h>

#include <cmath>

#include "plugin/job/config_values.h"
#include "plugin/job/job_process.h"

namespace driftless::python {
namespace {

JobRole parse_role(const std::string& text) {
  for (const JobRole role : {JobRole::kTrainer, JobRole::kRollout, JobRole::kBystander}) {
    if (text == to_string(role)) return role;
  }
  throw StatusError(error(StatusCode::kInvalidArgument, "role '", text,
                          "': expected trainer, rollout or bystander"));
}

}  // namespace

InUse::Turn::Turn(std::atomic_flag& flag, std::string_view what) : flag_(flag) {
  if (flag_.test_and_set()) {
    throw StatusError(error(StatusCode::kBusy, what,
                            " is in use by another thread or by the call that this one is made "
                            "from: one call at a time"));
  }
}

Job::Job(Config config, JobRole role, bool launched)
    : config_(std::move(config)), role_(role), launched_(launched) {
  process_ = take([&] {
    const py::gil_scoped_release released;
    return join_job(road_table(), config_, role_, launched_);
  }());
}

Job::~Job() { leave(); }

const std::shared_ptr<JobProcess>& Job::shared_process() {
  if (process_ == nullptr)
    throw StatusError(error(StatusCode::kInvalidArgument, "the job is closed"));
  return process_;
}

void Job::drop_members() {
  for (const std::weak_ptr<JobMember>& member : members_) {
    if (const std::shared_ptr<JobMember> alive = member.lock()) alive->drop();
  }
  members_.clear();
}

void Job::close(std::chrono::milliseconds wait) {
  if (process_ == nullptr) return;
  const InUse::Turn turn = in_use_.take("the job");
  drop_members();
  Status closed;
  {
    const py::gil_scoped_release released;
    closed = process_->close(Deadline::after(wait));
    process_.reset();
  }
  check(std::move(closed));
}

void Job::leave() {
  if (process_ == nullptr) return;
  drop_members();
  const py::gil_scoped_release released;
  process_.reset();
}

std::chrono::milliseconds milliseconds_of(double seconds, std::string_view what) {
  const double longest = std::chrono::duration<double>(kMaxDuration).count();
  if (!(seconds >= 0) || seconds > longest) {
    throw StatusError(error(StatusCode::kInvalidArgument, what, " is ", seconds,
                            " seconds: expected 0 to ", longest));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

std::chrono::milliseconds milliseconds_or(const py::object& seconds,
                                          std::chrono::milliseconds otherwise,
                                          std::string_view what) {
  return seconds.is_none() ? otherwise : milliseconds_of(seconds.cast<double>(), what);
}

void bind_job(py::module_& module) {
  module.def("launched_by_mpi", &launched_by_mpi);
  py::class_<Job, std::shared_ptr<Job>>(module, "Job")
      .def(
          py::init([](const Config& config, const std::string& role, std::optional<bool> launched) {
            return std::make_shared<Job>(config, parse_role(role),
                                         launched.value_or(launched_by_mpi()));
          }),
          py::arg("config"), py::arg("role"), py::arg("launched") = py::none())
      .def_property_readonly("role",
                             [](const Job& job) { return std::string(to_string(job.role())); })
      .def_property_readonly("launched", &Job::launched)
      .def_property_readonly("rank", [](Job& job) { return job.process().rank(); })
      .def_property_readonly("trainers", [](Job& job) { return job.process().trainers(); })
      .def_property_readonly("rollouts", [](Job& job) { return job.process().rollouts(); })
      .def_property_readonly("together", [](Job& job) { return job.process().together(); })
      .def_property_readonly("closed", &Job::closed)
      .def(
          "tell_end",
          [](Job& job, const std::string& text, const py::object& timeout_s) {
            const auto wait =
                milliseconds_or(timeout_s, job.config().connect_deadline, "timeout_s");
            JobProcess& process = job.process();
            const InUse::Turn turn = job.in_use().take("the job");
            const py::gil_scoped_release released;
            check(process.tell_end(text, Deadline::after(wait)));
          },
          py::arg("text"), py::arg("timeout_s") = py::none())
      .def("hear_end",
           [](Job& job) {
             JobProcess& process = job.process();
             const InUse::Turn turn = job.in_use().take("the job");
             const py::gil_scoped_release released;
             return take(process.hear_end());
           })
      .def(
          "close",
          [](Job& job, const py::object& timeout_s) {
            job.close(milliseconds_or(timeout_s, job.config().connect_deadline, "timeout_s"));
          },
          py::arg("timeout_s") = py::none())
      .def("leave", &Job::leave)
      .def(
          "abandon", [](Job& job, int exit_code) { job.process().abandon(exit_code); },
          py::arg("exit_code") = 1)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Job& job, const py::object& type, const py::object&, const py::object&) {
        // The others may be waiting in something else: no meeting after a failure.
        if (type.is_none()) {
          job.close(job.config().connect_deadline);
        } else {
          job.leave();
        }
      });
}

}  // namespace driftless::python
