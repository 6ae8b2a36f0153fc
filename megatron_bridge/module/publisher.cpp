// driftless.Publisher.
#include "plugin/publish/publisher.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "collectives/shared_fs/shared_fs_road.h"
#include "module/bindings.h"
#include "module/group.h"
#include "module/job.h"
#include "module/source.h"
#include "plugin/job/job_names.h"
#include "plugin/job/metrics.h"
#include "plugin/job/roads.h"
#include "plugin/job/run_end.h"

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
    JobProcess& process = job_->process();
    if (!group.is_none()) group_ = make_own_group(group);
    const std::unique_ptr<WeightSource> source = make_source(base, failure_);
    const InUse::Turn turn = job_->in_use().take("the job");
    try {
      publisher_ = native_call_keeping(*source, process);
      refresh();
    } catch (...) {
      drop();
      throw;
    }
  }
  HeldPublisher(const HeldPublisher&) = delete;
  HeldPublisher& operator=(const HeldPublisher&) = delete;
  ~HeldPublisher() override { drop_now(); }

  void drop() override {
    const InUse::Turn turn = in_use_.take("the publisher");
    drop_now();
  }

  [[nodiscard]] Publisher& publisher() {
    if (!publisher_) {
      throw StatusError(error(StatusCode::kInvalidArgument, "the publisher is closed"));
    }
    return *publisher_;
  }
  // The last version that was committed, as of the last call: another thread may be at work.
  [[nodiscard]] const EndOfRun& newest() {
    static_cast<void>(publisher());
    return newest_;
  }
  [[nodiscard]] SendRoad& road() { return *road_; }
  [[nodiscard]] Job& job() { return *job_; }
  [[nodiscard]] PythonFailure& failure() { return failure_; }
  [[nodiscard]] InUse& in_use() { return in_use_; }
  [[nodiscard]] unsigned rank() const { return group_ ? group_->rank() : 0; }

  [[nodiscard]] PublishReport publish(const py::object& object) {
    Publisher& made = publisher();
    const InUse::Turn turn = in_use_.take("the publisher");
    failure_.forget();
    const std::unique_ptr<WeightSource> source = make_source(object, failure_);
    Result<PublishReport> report = [&] {
      const py::gil_scoped_release released;
      return made.publish(*source);
    }();
    refresh();
    if (!report.ok()) failure_.rethrow();
    PublishReport done = python::take(std::move(report));
    if (metrics_) note(done, metrics_->write(metrics_of(done, rank())));
    return done;
  }

 private:
  [[nodiscard]] std::unique_ptr<Group> make_own_group(const py::object& group) {
    const Config& config = job_->config();
    const bool plain =
        config.road == RoadKind::kSharedFs && config.publisher.layout != DirectoryLayout::kHdf5;
    if (job_->launched() || !plain) {
      throw StatusError(error(StatusCode::kInvalidArgument,
                              "group= is for jobs that no MPI launcher started, on shared_fs "
                              "without hdf5: this one is ",
                              to_string(config.road), job_->launched() ? " under MPI" : "",
                              "; pass launched=False to Job, or no group"));
    }
    return make_group(group, failure_);
  }

  // What its source raised is raised again.
  [[nodiscard]] std::unique_ptr<Publisher> native_call_keeping(WeightSource& source,
                                                               JobProcess& process) {
    Result<std::unique_ptr<Publisher>> made = [&]() -> Result<std::unique_ptr<Publisher>> {
      const py::gil_scoped_release released;
      return open(source, process);
    }();
    if (!made.ok()) failure_.rethrow();
    return python::take(std::move(made));
  }

  [[nodiscard]] Result<std::unique_ptr<Publisher>> open(WeightSource& source, JobProcess& process) {
    const Config& config = job_->config();
    if (group_) {
      DRIFTLESS_ASSIGN_OR_RETURN(road_, make_shared_fs_sender(posix_file_system(), config.shared_fs,
                                                              group_->rank(), group_->size()));
    } else {
      DRIFTLESS_ASSIGN_OR_RETURN(group_, process.group());
      const std::uint64_t room = config.anchors() ? anchor_room_bytes(source.tensors()) : 0;
      DRIFTLESS_ASSIGN_OR_RETURN(road_,
                                 process.sender(room, Deadline::after(config.connect_deadline)));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(history_, process.history());
    PublisherOptions options = config.publisher;
    options.background = process.threads();
    DRIFTLESS_ASSIGN_OR_RETURN(options.device, open_device(config));
    DRIFTLESS_ASSIGN_OR_RETURN(auto publisher,
                               Publisher::open(options, *group_, *road_, history_.get(), source));
    if (group_->leads()) DRIFTLESS_RETURN_IF_ERROR(withdraw_end(config));
    if (!config.metrics_file.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          MetricsWriter metrics,
          MetricsWriter::open(filled_in(config.metrics_file, "trainer", group_->rank())));
      metrics_.emplace(std::move(metrics));
    }
    return publisher;
  }

  static void note(PublishReport& report, const Status& status) {
    if (!status.ok()) report.notes.push_back(status.to_string());
  }

  void drop_now() {
    const py::gil_scoped_release released;
    publisher_.reset();
    history_.reset();
    road_.reset();
    group_.reset();
  }

  void refresh() {
    newest_ = {publisher_->version().run, publisher_->version().version, publisher_->digest()};
  }

  std::shared_ptr<Job> job_;
  InUse in_use_;
  PythonFailure failure_;
  EndOfRun newest_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<SendRoad> road_;
  std::unique_ptr<ReceiveRoad> history_;
  std::unique_ptr<Publisher> publisher_;
  std::optional<MetricsWriter> metrics_;
};

void declare(HeldPublisher& held) {
  const EndOfRun end = held.newest();
  if (held.rank() != 0) return;
  JobProcess& process = held.job().process();
  const InUse::Turn turn = held.in_use().take("the publisher");
  const py::gil_scoped_release released;
  check(declare_end(process, held.job().config(), end));
}

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
             Publisher& publisher = held.publisher();
             const InUse::Turn turn = held.in_use().take("the publisher");
             publisher.request_anchor();
           })
      .def("publish_anchor",
           [](HeldPublisher& held) {
             Publisher& publisher = held.publisher();
             const InUse::Turn turn = held.in_use().take("the publisher");
             held.failure().forget();
             Status made;
             {
               const py::gil_scoped_release released;
               made = publisher.publish_anchor();
             }
             if (!made.ok()) held.failure().rethrow();
             check(std::move(made));
           })
      .def("declare_end", &declare)
      .def("receivers",
           [](HeldPublisher& held) {
             static_cast<void>(held.publisher());
             const InUse::Turn turn = held.in_use().take("the publisher");
             const py::gil_scoped_release released;
             held.road().progress();
             return take(held.road().receivers());
           })
      .def("progress",
           [](HeldPublisher& held) {
             static_cast<void>(held.publisher());
             const InUse::Turn turn = held.in_use().take("the publisher");
             const py::gil_scoped_release released;
             held.road().progress();
           })
      .def_property_readonly("rank", &HeldPublisher::rank)
      .def_property_readonly("layout",
                             [](HeldPublisher& held) { return held.publisher().layout(); })
      .def_property_readonly("version", [](HeldPublisher& held) { return held.newest().version; })
      .def_property_readonly("run", [](HeldPublisher& held) { return to_hex(held.newest().run); })
      .def_property_readonly("digest",
                             [](HeldPublisher& held) { return to_hex(held.newest().digest); })
      .def_property_readonly("resumed",
                             [](HeldPublisher& held) { return held.publisher().resumed(); })
      .def_property_readonly("notes", [](HeldPublisher& held) { return held.publisher().notes(); })
      .def("close", &HeldPublisher::drop)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](HeldPublisher& held, const py::object&, const py::object&,
                          const py::object&) { held.drop(); });
}

}  // namespace driftless::python
