// SPDX-License-Identifier: Apache-2.0
// driftless.Publisher: a PublisherSession whose job and sources Python holds.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>

#include "formats/records.h"
#include "module/bindings.h"
#include "module/job.h"
#include "module/source.h"
#include "plugin/job/devices.h"
#include "plugin/job/publisher_session.h"

namespace driftless::python {
namespace {

class HeldPublisher final : public HeldSession<PublisherSession> {
 public:
  HeldPublisher(std::shared_ptr<Job> job, const py::object& base, const py::object& group,
                const py::object& before_visible, const py::object& live,
                const std::optional<std::string>& snapshot, const py::object& checkpoint,
                bool complete)
      : HeldSession(std::move(job), JobRole::kTrainer, "publisher"),
        before_visible_(callback<const std::string&>(before_visible, "before_visible")) {
    std::unique_ptr<Group> callers_group = group.is_none() ? nullptr : make_callers_group(group);
    Config config = job_->config();
    if (snapshot) config.gpu.snapshot = take(parse_snapshot(*snapshot));
    take_checkpoint(checkpoint, complete, config.publisher);
    if (config.gpu.snapshot == SnapshotPlace::kNone) {
      live_ = std::make_unique<LiveSource>(live.is_none() ? base : live, failure_);
    }
    const std::shared_ptr<WeightSource> source = make_source(base, failure_);
    JobProcess& process = job_->process();
    const InUse::Turn turn = job_->in_use().take("the job");
    if (const std::optional<int> gpu = torch_gpu()) {
      config.use_gpu(*gpu);
      process.use_gpu(*gpu);
    }
    session_ = python::native_call(
        failure_,
        [&] { return open(std::move(config), *source, process, std::move(callers_group)); }, [] {});
    if (auto sink = job_->on_record().sink()) session_->records().keep(std::move(sink));
    refresh();
  }
  HeldPublisher(const HeldPublisher&) = delete;
  HeldPublisher& operator=(const HeldPublisher&) = delete;
  ~HeldPublisher() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    drop_now();
  }
  // Waits for a version in progress. Returns its status, unless wait() has returned it.
  Status drop() override {
    Status last = wait_for_last();
    static_cast<void>(HeldSession::drop());
    return last;
  }
  // As drop(), but keeps the session.
  [[nodiscard]] Status wait_for_last() {
    if (session_ == nullptr || forked()) return {};
    const InUse::Turn turn = take_turn();
    const auto last = without_gil([&] { return session_->wait(); });
    job_->on_record().flush();
    return last ? last->status() : Status();
  }

  // Waits at exit for a version in progress, which otherwise would end with Python's threads.
  void wait_at_exit(const std::weak_ptr<HeldPublisher>& self) const {
    if (live_ == nullptr) return;
    py::module_::import("atexit").attr("register")(py::cpp_function([self] {
      const std::shared_ptr<HeldPublisher> alive = self.lock();
      if (alive != nullptr) check(alive->wait_for_last());
    }));
  }

  // The newest committed version, as of the last call; a call of another thread may be in progress.
  [[nodiscard]] const EndOfRun& newest() {
    static_cast<void>(session());
    return newest_;
  }
  [[nodiscard]] Publisher& publisher() { return session().publisher(); }

  // Returns the report; none if publishing continues during the next step.
  [[nodiscard]] std::optional<PublishReport> publish(const py::object& object, bool wait,
                                                     std::optional<std::uint64_t> step) {
    PublisherSession& made = session();
    const InUse::Turn turn = take_turn();
    finish_background(made);
    const std::shared_ptr<WeightSource> source = make_source(object, failure_, live_.get(), wait);
    if (wait) return native_call([&] { return made.publish(*source, step); });
    LiveSource& weights = live();
    void* const stream = weights.memory() == MemoryKind::kDevice ? gpu_stream() : nullptr;
    native_call([&] {
      made.publish_in_background(*source, weights, stream, step);
      return Status();
    });
    return std::nullopt;
  }

  [[nodiscard]] std::optional<PublishReport> wait() {
    return call([](PublisherSession& made) -> Result<std::optional<PublishReport>> {
      std::optional<Result<PublishReport>> last = made.wait();
      if (!last) return std::optional<PublishReport>();
      if (!last->ok()) return last->status();
      return std::optional<PublishReport>(std::move(**last));
    });
  }

  void capture(const py::iterable& pairs) {
    PublisherSession& made = session();
    const InUse::Turn turn = take_turn();
    finish_background(made);
    const LiveSource& weights = live();
    std::vector<TensorRef> refs;
    std::vector<Publisher::NewTensor> values;
    bool on_gpu = false;
    try {
      for (const py::handle entry : pairs) {
        const auto [number, tensor] = entry.cast<std::pair<std::size_t, py::object>>();
        const TensorRef& ref = refs.emplace_back(weights.new_values(number, tensor));
        values.push_back(
            {number, ref.data, ref.dtype, ref.on_host() ? MemoryKind::kHost : MemoryKind::kDevice});
        on_gpu = on_gpu || !ref.on_host();
      }
    } catch (...) {
      without_gil([&] { made.doubt(); });
      throw;
    }
    void* const stream = on_gpu ? gpu_stream() : nullptr;
    native_call([&] { return made.capture(values, stream); });
  }

  [[nodiscard]] std::vector<std::string> notify_engines() {
    return call([](PublisherSession& made) -> Result<std::vector<std::string>> {
      std::vector<std::string> texts;
      if (!made.leads()) return texts;
      made.wait_for_background();
      for (const Status& failure : made.notify_engines(made.newest().version)) {
        texts.push_back(failure.to_string());
      }
      return texts;
    });
  }

  // The results of each engine, as of the last call; a call of another thread may be in progress.
  [[nodiscard]] const std::vector<EngineTally>& engines() {
    static_cast<void>(session());
    return engines_;
  }

 private:
  // Waits for the version in the background. Its Python exception is dropped, so that the call that
  // follows does not raise it; wait() still returns its text.
  void finish_background(PublisherSession& made) {
    without_gil([&] { made.wait_for_background(true); });
    failure_.forget();
  }
  [[nodiscard]] std::unique_ptr<Group> make_callers_group(const py::object& group) {
    if (job_->launched()) {
      fail(StatusCode::kInvalidArgument,
           "group= is for jobs that no MPI launcher started, and this one is under MPI: pass "
           "launched=False to Job, or no group");
    }
    return make_group(group, failure_);
  }

  static void take_checkpoint(const py::object& checkpoint, bool complete,
                              PublisherOptions& options) {
    options.complete = complete;
    if (checkpoint.is_none()) {
      if (!complete) return;
      fail(StatusCode::kInvalidArgument,
           "complete=True needs checkpoint=, the base whose tensors must all be published");
    }
    const bool opened = py::hasattr(checkpoint, "path");  // a CheckpointSource
    options.base_checkpoint = path_of(opened ? py::object(checkpoint.attr("path")) : checkpoint);
  }

  [[nodiscard]] Result<std::unique_ptr<PublisherSession>> open(Config config, WeightSource& source,
                                                               JobProcess& process,
                                                               std::unique_ptr<Group> group) const {
    DRIFTLESS_ASSIGN_OR_RETURN(
        config.publisher.device,
        open_device(config, live_ != nullptr ? live_->memory() : MemoryKind::kHost));
    config.publisher.before_visible = before_visible_;
    return PublisherSession::open(config, process, source, std::move(group), live_.get());
  }
  [[nodiscard]] LiveSource& live() const {
    if (live_ != nullptr) return *live_;
    fail(StatusCode::kInvalidArgument,
         "capture() and wait=False are for publishers without a snapshot: set snapshot: none");
  }

  void refresh() override {
    if (!session_->under_way()) newest_ = session_->newest();
    if (session_->engines() != nullptr) engines_ = session_->engines()->tallies();
    job_->on_record().flush();
  }

  const std::function<Status(const std::string&)> before_visible_;
  std::unique_ptr<LiveSource> live_;  // if there is no snapshot
  EndOfRun newest_;
  std::vector<EngineTally> engines_;
};

void bind_receiver_report(py::module_& module) {
  py::class_<ReceiverReport> receiver(
      module, "ReceiverReport",
      "A receiver's last report. Do not rely on the version number alone, because a receiver of an "
      "earlier run may have reported the same number: compare `digest` (hex; '' if it holds no "
      "version) with the version's digest. `proven`: the digest was computed from all of the "
      "receiver's tensors. `partial`: the receiver holds only some of the run's tensors, and "
      "`digest` is of these.");
  def_fields(
      receiver, "id", &ReceiverReport::id, "version", &ReceiverReport::version, "proof",
      &ReceiverReport::proof, "digest",
      [](const ReceiverReport& report) { return parse_proof(report.proof).digest; }, "proven",
      [](const ReceiverReport& report) {
        const ReportProof proof = parse_proof(report.proof);
        return !proof.digest.empty() && proof.unproven == 0;
      },
      "partial", &wants_parts);
}

void bind_publish_reports(py::module_& module) {
  py::class_<LiveCosts> live(
      module, "LiveCosts",
      "The costs of a version without a snapshot: memory of the captured changes, tensors that "
      "were "
      "sent whole because they differed from the captured values, and times. step_ms: the total "
      "delay of the trainer's steps.");
  def_fields(live, "captured_bytes", &LiveCosts::captured_bytes, "resent_tensors",
             &LiveCosts::resent_tensors, "capture_ms", &LiveCosts::capture_ms, "sweep_ms",
             &LiveCosts::sweep_ms, "step_ms", &LiveCosts::step_ms);
  using Report = PublishReport;
  py::class_<Report> report(module, "PublishReport");
  def_fields(report, "version", &Report::version, "base_version", &Report::base_version, "encoding",
             &Report::encoding, "digest", &Report::digest, "changed_units", &Report::changed_units,
             "total_units", &Report::total_units, "full_bytes", &Report::full_bytes, "delta_bytes",
             &Report::delta_bytes, "wire_bytes", &Report::wire_bytes, "anchor", &Report::anchor,
             "notes", &Report::notes, "process_ms", &Report::process_ms, "manifest_publish_ms",
             &Report::manifest_publish_ms, "total_ms", &Report::total_ms, "live", &Report::live);
  report.def("__repr__", [](const Report& self) {
    return concat("PublishReport(version=", self.version, ", encoding='", info(self.encoding).name,
                  "', changed_units=", self.changed_units, ", wire_bytes=", self.wire_bytes, ")");
  });
  bind_receiver_report(module);
  py::class_<EngineTally> engine(
      module, "EngineTally",
      "An engine that the leading trainer notifies of every version: the number of versions, how "
      "many of them it failed to load, and the last error.");
  def_fields(engine, "url", &EngineTally::url, "versions", &EngineTally::versions, "failures",
             &EngineTally::failures, "error", &EngineTally::error);
}

}  // namespace

void bind_publisher(py::module_& module) {
  bind_publish_reports(module);
  py::class_<HeldPublisher, std::shared_ptr<HeldPublisher>>(
      module, "Publisher",
      "Publishes the versions of a run. Collective: every publisher rank makes the same calls.\n\n"
      "A source is a CheckpointSource, or an object with these methods. tensors() returns the same "
      "TensorSpecs on every call, with full shapes. visit() yields every tensor once, in batches "
      "of "
      "(index in tensors(), tensor); it is called again if a version turns out to be dense. A "
      "source that holds parts of tensors also has boxes(): for each of tensors(), None (all of "
      "it) "
      "or (offsets, sizes), as in ShardedSource.\n\n"
      "`group`, for a job without MPI, has rank, size, gather(bytes, timeout_s), which returns the "
      "messages of all ranks on rank 0, broadcast(bytes, timeout_s), and optionally "
      "begin_epoch(number), which discards earlier messages; the number is 0 for a new publisher, "
      "then ascends.\n\n"
      "`before_visible` is called on every rank before any receiver can see the version, with the "
      "directory of the rank's files (on shared_fs; otherwise ''). If it raises, the version is "
      "not "
      "published.\n\n"
      "`snapshot` overrides the configuration's. With 'none', `base` is read once, `live` "
      "(default: "
      "`base`) offers the trainer's weights in place, and capture() supplies the changes. A live "
      "source may have watched(): for each tensor, whether other code than the optimizer writes "
      "it.\n\n"
      "`checkpoint`: the base that trainer and receivers start from, a path or a CheckpointSource. "
      "Its tensors that no rank offers are named in `notes` and recorded in the announcement, and "
      "receivers that hold them prove them. With `complete` such tensors are an error.")
      .def(py::init([](const std::shared_ptr<Job>& job, const py::object& base,
                       const py::object& group, const py::object& before_visible,
                       const py::object& live, const std::optional<std::string>& snapshot,
                       const py::object& checkpoint, bool complete) {
             auto made = std::make_shared<HeldPublisher>(job, base, group, before_visible, live,
                                                         snapshot, checkpoint, complete);
             job->enter(made);
             made->wait_at_exit(made);
             return made;
           }),
           py::arg("job"), py::arg("base"), py::arg("group") = py::none(),
           py::arg("before_visible") = py::none(), py::arg("live") = py::none(),
           py::arg("snapshot") = py::none(), py::arg("checkpoint") = py::none(),
           py::arg("complete") = false)
      .def(
          "publish",
          [](HeldPublisher& held, const py::object& source, std::optional<std::uint64_t> step) {
            return *held.publish(source, true, step);
          },
          py::arg("source"), py::kw_only(), py::arg("step") = py::none(),
          "Publishes the next version. `step`: the training step of the weights. If ranks pass "
          "different steps, no version is made; if a rank left out a call, the ranks agree again "
          "at "
          "the next step that all of them pass.")
      .def(
          "publish", &HeldPublisher::publish, py::arg("source"), py::arg("wait"), py::kw_only(),
          py::arg("step") = py::none(),
          "As above. With wait=False, for snapshot: none, returns None, and a thread publishes the "
          "version while training continues; capture(), publish() and other calls wait for that "
          "thread. wait() or close() reports the result. The next version carries the changes of a "
          "failed one.")
      .def("wait", &HeldPublisher::wait,
           "Waits for the version of publish(wait=False), and returns its report or raises its "
           "error. Returns None if there is no such version, or if its result was returned before.")
      .def("capture", &HeldPublisher::capture, py::arg("pairs"),
           "For snapshot: none. Call it before weights are written, with pairs of (index in the "
           "source's tensors(), the new values): as many values as weights, of the same type, or "
           "float32 values that will be rounded to bfloat16 or float16. Keeps the changes until a "
           "version holds them. May be called several times per version. Not collective.")
      .def(
          "doubt",
          [](HeldPublisher& held) {
            held.call([](PublisherSession& session) {
              session.doubt();
              return Status();
            });
          },
          "For snapshot: none. Reports that weights may have been written without capture(). The "
          "next publish() then compares all weights before it returns, also with wait=False. Not "
          "collective.")
      .def("request_anchor",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_for_background();
               session.publisher().request_anchor();
               return Status();
             });
           })
      .def("publish_anchor",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_for_background();
               return session.publisher().publish_anchor();
             });
           })
      .def(
          "declare_end",
          [](HeldPublisher& held) {
            held.call([](PublisherSession& session) {
              return session.leads() ? session.declare_end() : Status();
            });
          },
          "Declares the end of the run to the receivers. Does nothing on other ranks than the "
          "first.")
      .def("receivers", [](HeldPublisher& held) { return held.call(&PublisherSession::listen); })
      .def("progress",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_for_background();
               session.road().progress();
               return Status();
             });
           })
      .def(
          "tell_engines", &HeldPublisher::notify_engines,
          "Notifies the configuration's `engines` of the last version, waits for them, and removes "
          "files that they no longer need. Returns the failures, as text. Does nothing on other "
          "ranks than the first.")
      .def_property_readonly("engines", &HeldPublisher::engines,
                             "An EngineTally per notified engine. Empty on other ranks than the "
                             "first.")
      .def_property_readonly("rank", [](HeldPublisher& held) { return held.session().rank(); })
      .def_property_readonly("layout",
                             [](HeldPublisher& held) { return held.publisher().layout(); })
      .def_property_readonly("version", [](HeldPublisher& held) { return held.newest().version; })
      .def_property_readonly("run", [](HeldPublisher& held) { return to_hex(held.newest().run); })
      .def_property_readonly("digest",
                             [](HeldPublisher& held) { return to_hex(held.newest().digest); })
      .def_property_readonly("resumed",
                             [](HeldPublisher& held) { return held.publisher().resumed(); })
      .def_property_readonly("notes", [](HeldPublisher& held) { return held.publisher().notes(); })
      .def(
          "close", [](HeldPublisher& held) { check(held.drop()); },
          "Waits for a version in progress, and raises its error unless wait() did.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](HeldPublisher& held, const py::object& type, const py::object&, const py::object&) {
             const Status last = held.drop();
             if (type.is_none()) check(last);
           });
}

}  // namespace driftless::python
