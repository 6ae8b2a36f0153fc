// SPDX-License-Identifier: Apache-2.0
// driftless.Publisher: a PublisherSession whose job and sources Python holds.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "module/bindings.h"
#include "module/group.h"
#include "module/job.h"
#include "module/source.h"
#include "plugin/job/devices.h"
#include "plugin/job/publisher_session.h"

namespace driftless::python {
namespace {

class HeldPublisher final : public JobMember {
 public:
  HeldPublisher(std::shared_ptr<Job> job, const py::object& base, const py::object& group)
      : job_(std::move(job)) {
    if (job_->role() != JobRole::kTrainer) {
      throw StatusError(error(StatusCode::kInvalidArgument,
                              "a publisher needs a job of role "
                              "trainer, this one is ",
                              to_string(job_->role())));
    }
    std::unique_ptr<Group> own = group.is_none() ? nullptr : make_own_group(group);
    const std::unique_ptr<WeightSource> source = make_source(base, failure_);
    JobProcess& process = job_->process();
    const InUse::Turn turn = job_->in_use().take("the job");
    session_ = native_call(failure_, [&] { return open(*source, process, std::move(own)); });
    refresh();
  }
  HeldPublisher(const HeldPublisher&) = delete;
  HeldPublisher& operator=(const HeldPublisher&) = delete;
  ~HeldPublisher() override { drop_now(); }

  void drop() override {
    const InUse::Turn turn = in_use_.take("the publisher");
    drop_now();
  }

  [[nodiscard]] PublisherSession& session() {
    if (!session_) {
      throw StatusError(error(StatusCode::kInvalidArgument, "the publisher is closed"));
    }
    return *session_;
  }
  // The last version that was committed, as of the last call: another thread may be at work.
  [[nodiscard]] const EndOfRun& newest() {
    static_cast<void>(session());
    return newest_;
  }
  [[nodiscard]] unsigned rank() { return session().rank(); }

  // Runs `work` without the GIL; what Python raised meanwhile is raised again.
  template <typename Work>
  auto call(Work&& work) {
    PublisherSession& made = session();
    const InUse::Turn turn = in_use_.take("the publisher");
    return native_call(failure_, [&] { return work(made); });
  }
  void do_call(const std::function<Status(PublisherSession&)>& work) {
    call([&](PublisherSession& made) -> Result<bool> {
      DRIFTLESS_RETURN_IF_ERROR(work(made));
      return true;
    });
  }

  [[nodiscard]] PublishReport publish(const py::object& object) {
    PublisherSession& made = session();
    const InUse::Turn turn = in_use_.take("the publisher");
    failure_.forget();
    const std::unique_ptr<WeightSource> source = make_source(object, failure_);
    Result<PublishReport> report = [&] {
      const py::gil_scoped_release released;
      return made.publish(*source);
    }();
    refresh();
    if (!report.ok()) failure_.rethrow();
    return python::take(std::move(report));
  }

  // What went wrong, in words; nothing on ranks but the first.
  [[nodiscard]] std::vector<std::string> tell_engines() {
    return call([](PublisherSession& made) -> Result<std::vector<std::string>> {
      std::vector<std::string> texts;
      if (!made.leads()) return texts;
      for (const Status& failure : made.tell_engines(made.newest().version)) {
        texts.push_back(failure.to_string());
      }
      return texts;
    });
  }

  // Of every engine, what it took; empty on ranks but the first.
  [[nodiscard]] std::vector<EngineTally> engines() {
    const NotifiedEngines* const told = session().engines();
    return told == nullptr ? std::vector<EngineTally>() : told->tallies();
  }

 private:
  [[nodiscard]] std::unique_ptr<Group> make_own_group(const py::object& group) {
    const Config& config = job_->config();
    const bool plain =
        config.road == kSharedFs && config.publisher.layout != DirectoryLayout::kHdf5;
    if (job_->launched() || !plain) {
      throw StatusError(error(StatusCode::kInvalidArgument,
                              "group= is for jobs that no MPI launcher started, on shared_fs "
                              "without hdf5: this one is ",
                              config.road, job_->launched() ? " under MPI" : "",
                              "; pass launched=False to Job, or no group"));
    }
    return make_group(group, failure_);
  }

  [[nodiscard]] Result<std::unique_ptr<PublisherSession>> open(WeightSource& source,
                                                               JobProcess& process,
                                                               std::unique_ptr<Group> group) const {
    Config config = job_->config();
    DRIFTLESS_ASSIGN_OR_RETURN(config.publisher.device, open_device(config));
    return PublisherSession::open(config, process, source, std::move(group));
  }

  void drop_now() {
    const py::gil_scoped_release released;
    session_.reset();
  }

  void refresh() { newest_ = session_->newest(); }

  std::shared_ptr<Job> job_;
  InUse in_use_;
  PythonFailure failure_;
  EndOfRun newest_;
  std::unique_ptr<PublisherSession> session_;
};

void bind_publish_report(py::module_& module) {
  py::class_<PublishReport>(module, "PublishReport")
      .def_readonly("version", &PublishReport::version)
      .def_readonly("base_version", &PublishReport::base_version)
      .def_property_readonly(
          "encoding",
          [](const PublishReport& report) { return std::string(info(report.encoding).name); })
      .def_property_readonly("digest",
                             [](const PublishReport& report) { return to_hex(report.digest); })
      .def_readonly("changed_units", &PublishReport::changed_units)
      .def_readonly("total_units", &PublishReport::total_units)
      .def_readonly("full_bytes", &PublishReport::full_bytes)
      .def_readonly("delta_bytes", &PublishReport::delta_bytes)
      .def_readonly("wire_bytes", &PublishReport::wire_bytes)
      .def_readonly("anchor", &PublishReport::anchor)
      .def_readonly("notes", &PublishReport::notes)
      .def_readonly("process_ms", &PublishReport::process_ms)
      .def_readonly("manifest_publish_ms", &PublishReport::manifest_publish_ms)
      .def_readonly("total_ms", &PublishReport::total_ms)
      .def("__repr__", [](const PublishReport& report) {
        return concat("PublishReport(version=", report.version, ", encoding='",
                      info(report.encoding).name, "', changed_units=", report.changed_units,
                      ", wire_bytes=", report.wire_bytes, ")");
      });
  py::class_<ReceiverReport>(module, "ReceiverReport")
      .def_readonly("id", &ReceiverReport::id)
      .def_readonly("version", &ReceiverReport::version)
      .def_readonly("proof", &ReceiverReport::proof);
  py::class_<EngineTally>(module, "EngineTally")
      .def_readonly("url", &EngineTally::url)
      .def_readonly("versions", &EngineTally::versions)
      .def_readonly("failures", &EngineTally::failures)
      .def_readonly("error", &EngineTally::error);
}

}  // namespace

void bind_publisher(py::module_& module) {
  bind_publish_report(module);
  py::class_<HeldPublisher, std::shared_ptr<HeldPublisher>>(module, "Publisher")
      .def(py::init([](const std::shared_ptr<Job>& job, const py::object& base,
                       const py::object& group) {
             auto made = std::make_shared<HeldPublisher>(job, base, group);
             job->enter(made);
             return made;
           }),
           py::arg("job"), py::arg("base"), py::arg("group") = py::none())
      .def("publish", &HeldPublisher::publish, py::arg("source"))
      .def("request_anchor",
           [](HeldPublisher& held) {
             held.do_call([](PublisherSession& session) -> Status {
               session.publisher().request_anchor();
               return {};
             });
           })
      .def("publish_anchor",
           [](HeldPublisher& held) {
             held.do_call(
                 [](PublisherSession& session) { return session.publisher().publish_anchor(); });
           })
      .def("declare_end",
           [](HeldPublisher& held) {
             held.do_call([](PublisherSession& session) {
               return session.leads() ? session.declare_end() : Status();
             });
           })
      .def("receivers",
           [](HeldPublisher& held) {
             return held.call([](PublisherSession& session) { return session.listen(); });
           })
      .def("progress",
           [](HeldPublisher& held) {
             held.do_call([](PublisherSession& session) -> Status {
               session.road().progress();
               return {};
             });
           })
      .def("tell_engines", &HeldPublisher::tell_engines)
      .def_property_readonly("engines", &HeldPublisher::engines)
      .def_property_readonly("rank", &HeldPublisher::rank)
      .def_property_readonly(
          "layout", [](HeldPublisher& held) { return held.session().publisher().layout(); })
      .def_property_readonly("version", [](HeldPublisher& held) { return held.newest().version; })
      .def_property_readonly("run", [](HeldPublisher& held) { return to_hex(held.newest().run); })
      .def_property_readonly("digest",
                             [](HeldPublisher& held) { return to_hex(held.newest().digest); })
      .def_property_readonly(
          "resumed", [](HeldPublisher& held) { return held.session().publisher().resumed(); })
      .def_property_readonly("notes",
                             [](HeldPublisher& held) { return held.session().publisher().notes(); })
      .def("close", &HeldPublisher::drop)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](HeldPublisher& held, const py::object&, const py::object&,
                          const py::object&) { held.drop(); });
}

}  // namespace driftless::python
