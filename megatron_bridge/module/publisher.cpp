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
    std::unique_ptr<Group> own = group.is_none() ? nullptr : make_own_group(group);
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
        failure_, [&] { return open(std::move(config), *source, process, std::move(own)); }, [] {});
    if (auto sink = job_->on_record().sink()) session_->records().own(std::move(sink));
    refresh();
  }
  HeldPublisher(const HeldPublisher&) = delete;
  HeldPublisher& operator=(const HeldPublisher&) = delete;
  ~HeldPublisher() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    drop_now();
  }
  // Waits for a version under way, and tells how it went, if nobody has asked.
  Status drop() override {
    Status last = wait_for_last();
    static_cast<void>(HeldSession::drop());
    return last;
  }
  // The same, and nothing is dropped.
  [[nodiscard]] Status wait_for_last() {
    if (session_ == nullptr || forked()) return {};
    const InUse::Turn turn = take_turn();
    const auto last = without_gil([&] { return session_->wait(); });
    job_->on_record().flush();
    return last ? last->status() : Status();
  }

  // Python ends its threads before it drops what is left, and a version under way with them.
  void wait_at_exit(const std::weak_ptr<HeldPublisher>& self) const {
    if (live_ == nullptr) return;
    py::module_::import("atexit").attr("register")(py::cpp_function([self] {
      const std::shared_ptr<HeldPublisher> alive = self.lock();
      if (alive != nullptr) check(alive->wait_for_last());
    }));
  }

  // The last version that was committed, as of the last call: another thread may be at work.
  [[nodiscard]] const EndOfRun& newest() {
    static_cast<void>(session());
    return newest_;
  }
  [[nodiscard]] Publisher& publisher() { return session().publisher(); }

  // The report; nothing if it goes on behind the next step.
  [[nodiscard]] std::optional<PublishReport> publish(const py::object& object, bool wait,
                                                     std::optional<std::uint64_t> step) {
    PublisherSession& made = session();
    const InUse::Turn turn = take_turn();
    finish_behind(made);
    const std::shared_ptr<WeightSource> source = make_source(object, failure_, live_.get(), wait);
    if (wait) return native_call([&] { return made.publish(*source, step); });
    LiveSource& weights = live();
    void* const stream = weights.memory() == MemoryKind::kDevice ? gpu_stream() : nullptr;
    native_call([&] {
      made.publish_behind(*source, weights, stream, step);
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
    finish_behind(made);
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

  [[nodiscard]] std::vector<std::string> tell_engines() {
    return call([](PublisherSession& made) -> Result<std::vector<std::string>> {
      std::vector<std::string> texts;
      if (!made.leads()) return texts;
      made.wait_behind();
      for (const Status& failure : made.tell_engines(made.newest().version)) {
        texts.push_back(failure.to_string());
      }
      return texts;
    });
  }

  // What each of them took, as of the last call: another thread may be at work.
  [[nodiscard]] const std::vector<EngineTally>& engines() {
    static_cast<void>(session());
    return engines_;
  }

 private:
  // What Python raised in a version behind is not what fails now; wait() has its text still.
  void finish_behind(PublisherSession& made) {
    without_gil([&] { made.wait_behind(true); });
    failure_.forget();
  }
  [[nodiscard]] std::unique_ptr<Group> make_own_group(const py::object& group) {
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
      "What a receiver last reported. A version's number is no identity: receivers of an earlier "
      "run may have reported it, too. Compare `digest` (hex; '' if it holds nothing) with that of "
      "the version. `proven`: the digest was computed from all of the receiver's tensors. "
      "`partial`: it holds some of the run's tensors, and the digest is theirs.");
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
      "What a version without a snapshot took: memory of the captured changes, tensors that were "
      "sent whole because they were not what was captured, and times. step_ms: all that held up "
      "the trainer's steps.");
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
      "An engine that the leading trainer tells about every version: of how many it was told, how "
      "many it failed to take, and the error of the last failure.");
  def_fields(engine, "url", &EngineTally::url, "versions", &EngineTally::versions, "failures",
             &EngineTally::failures, "error", &EngineTally::error);
}

}  // namespace

void bind_publisher(py::module_& module) {
  bind_publish_reports(module);
  py::class_<HeldPublisher, std::shared_ptr<HeldPublisher>>(
      module, "Publisher",
      "The trainer's side. Collective: every publisher rank makes the same calls. Sources are "
      "CheckpointSource, or have tensors(), the same TensorSpecs on every call, and visit(), which "
      "gives every tensor once, in batches of (number in tensors(), tensor), and is called again "
      "if a version turns out to be dense. A source that holds parts of tensors also has boxes(): "
      "of each of tensors(), with their full shapes, None or (offsets, sizes) (ShardedSource). "
      "`group`, for a job without MPI, has rank, size, "
      "gather(bytes, timeout_s), which on rank 0 returns the messages of all ranks, "
      "broadcast(bytes, timeout_s), and perhaps begin_epoch(number): what was said before is void; "
      "0 for a new publisher, then ascending. `before_visible` is called on "
      "every rank with the directory that its files of a version lie in (on shared_fs; else ''), "
      "before any process can see the version; if it raises, the version is not published. "
      "`snapshot` overrides the configuration's. With 'none', `base` is read once, and `live` (if "
      "it is not `base`) offers the trainer's own weights, which stay where they are; what changes "
      "comes by capture(). A source may then have watched(): of each tensor whether others write "
      "it, too. `checkpoint`: the base that trainer and receivers start from, a path or a "
      "CheckpointSource. Its tensors that no rank offers are named in `notes` and recorded in the "
      "announcement, and receivers that hold them prove them; with `complete` they are an error.")
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
          "The next version. `step`: the training step that the weights are of. Ranks that give "
          "different ones make no version; with ascending steps, ranks of which one left out a "
          "call meet again at the next step.")
      .def(
          "publish", &HeldPublisher::publish, py::arg("source"), py::arg("wait"), py::kw_only(),
          py::arg("step") = py::none(),
          "The report. With wait=False, for snapshot: none, the version goes on on a thread of its "
          "own while training does, and nothing is returned: capture(), publish() and the other "
          "calls wait for it. How it went, wait() says, or close(); if nobody asks, the next "
          "version carries what a failed one did not.")
      .def("wait", &HeldPublisher::wait,
           "Waits for the version of publish(wait=False): its report, or what failed is raised. "
           "None if there is none, or it was asked before.")
      .def("capture", &HeldPublisher::capture, py::arg("pairs"),
           "For snapshot: none, before weights are written. pairs: (number in the source's "
           "tensors(), what the weights become): as many values, of the same type, or float32 that "
           "is rounded to bfloat16 or float16 as it is written. Keeps what changes until a version "
           "has it. May be called several times for a version. Not collective.")
      .def(
          "doubt",
          [](HeldPublisher& held) {
            held.call([](PublisherSession& session) {
              session.doubt();
              return Status();
            });
          },
          "For snapshot: none: weights were written that capture() was not shown. The next "
          "publish() "
          "looks at all of them, also with wait=False before it returns. Not collective.")
      .def("request_anchor",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_behind();
               session.publisher().request_anchor();
               return Status();
             });
           })
      .def("publish_anchor",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_behind();
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
          "Tells the rollouts that no further version comes. Nothing on ranks but the first.")
      .def("receivers", [](HeldPublisher& held) { return held.call(&PublisherSession::listen); })
      .def("progress",
           [](HeldPublisher& held) {
             held.call([](PublisherSession& session) {
               session.wait_behind();
               session.road().progress();
               return Status();
             });
           })
      .def("tell_engines", &HeldPublisher::tell_engines,
           "Tells the `engines` of the configuration about the last version, waits for them, and "
           "cleans up behind them. Returns what went wrong. Nothing on ranks but the first.")
      .def_property_readonly("engines", &HeldPublisher::engines,
                             "What each of them took. Empty on ranks but the first.")
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
          "Waits for a version under way. Raises how it went, if nobody has asked.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](HeldPublisher& held, const py::object& type, const py::object&, const py::object&) {
             const Status last = held.drop();
             if (type.is_none()) check(last);
           });
}

}  // namespace driftless::python
