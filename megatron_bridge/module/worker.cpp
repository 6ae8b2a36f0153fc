// SPDX-License-Identifier: Apache-2.0
// driftless._native.Worker: one rank of an engine (plugin/receive/worker.h) whose target is a
// Python object with the interface of engines/target.py. Replies are JSON text.
#include "plugin/receive/worker.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "module/bindings.h"
#include "module/receiver.h"

namespace driftless::python {
namespace {

using std::chrono::milliseconds;

// How long open() waits for the run's announcement. The engine does not work meanwhile, so the wait
// is short; open() can be called again.
constexpr milliseconds kOpenWait{10'000};

// Disables torch's gradients on this thread: new threads start with gradients enabled, and a target
// may write parameters.
void forbid_gradients() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (modules.contains("torch")) modules["torch"].attr("set_grad_enabled")(false);
}

// Its methods are called without the GIL.
class PythonHost final : public WorkerHost {
 public:
  explicit PythonHost(py::object make_target) : make_target_(std::move(make_target)) {}
  PythonHost(const PythonHost&) = delete;
  PythonHost& operator=(const PythonHost&) = delete;
  ~PythonHost() override {
    const GilTaken taken;
    receiver_.reset();
    native_.reset();
    target_ = make_target_ = on_staged_ = py::object();
  }

  Result<Receiver*> open(const std::string& config, std::span<const std::string> sets,
                         const std::string& take_over) override {
    return with_gil([&]() -> Result<Receiver*> {
      Config settings = take(read_config(posix_file_system(), config, sets));
      open_python_store(settings);
      if (target_.is_none()) {
        py::object made = make_target_(settings.receiver.chunk_bytes);
        native_ = made.attr("native").cast<std::shared_ptr<HeldTarget>>();
        target_ = std::move(made);
      }
      const auto job =
          std::make_shared<Job>(std::move(settings), JobRole::kRollout, Launch{}, py::none());
      const py::none nothing;
      receiver_ = std::make_shared<HeldReceiver>(job, native_, std::nullopt, nothing, nothing,
                                                 nothing, take_over, kOpenWait);
      return &receiver_->session();
    });
  }
  void close() override {
    const GilTaken taken;
    receiver_.reset();
  }
  WeightTarget& target() override { return native_->target(); }
  Result<std::shared_ptr<const void>> use() override {
    return with_gil([&]() -> Result<std::shared_ptr<const void>> { return receiver_->use(); });
  }
  Result<std::vector<std::string>> follow(const Receiver& /*receiver*/) override {
    return with_gil([&]() -> Result<std::vector<std::string>> {
      auto moved =
          target_.attr("follow")(receiver_->tensor_digests()).cast<std::vector<std::string>>();
      check(without_gil([&] { return native_->wait_for_stream(); }));
      return moved;
    });
  }
  Status written() override {
    return with_gil([&]() -> Status {
      target_.attr("written")();
      return {};
    });
  }
  [[nodiscard]] std::string unread() const override {
    const GilTaken taken;
    return target_.attr("unread").cast<std::string>();
  }
  [[nodiscard]] std::map<std::string, std::uint64_t> ways() const override {
    const GilTaken taken;
    std::map<std::string, std::uint64_t> counts;
    for (const py::handle way : target_.attr("ways").attr("values")()) {
      ++counts[way.attr("way").cast<std::string>()];
    }
    return counts;
  }
  Status start(std::function<void()> work) override {
    return with_gil([&]() -> Status {
      target_.attr("reads") = false;
      return WorkerHost::start([work = std::move(work)] {
        const GilTaken taken;
        try {
          forbid_gradients();
        } catch (py::error_already_set& raised) {  // torch is only partly imported
          raised.discard_as_unraisable("driftless");
        }
        const GilReleased released;
        work();
      });
    });
  }
  void staged(const std::string& reply) override {
    report([&] {
      if (!on_staged_.is_none()) on_staged_(reply);
    });
  }
  void log(const std::string& line) override {
    report([&] { py::print(line, py::arg("flush") = true); });
  }

  // Needs the GIL.
  [[nodiscard]] const py::object& python_target() const { return target_; }
  [[nodiscard]] const std::shared_ptr<HeldReceiver>& receiver() const { return receiver_; }
  void set_on_staged(py::object called) { on_staged_ = std::move(called); }
  // Raises an exception that is not a failure of the call, such as KeyboardInterrupt.
  void rethrow() { interrupt_.rethrow(); }

 private:
  // Runs `work` with the GIL; its exception is the failure of the call.
  template <typename Work>
  auto with_gil(const Work& work) -> decltype(work()) {
    const GilTaken taken;
    try {
      return work();
    } catch (py::error_already_set& raised) {
      if (!raised.matches(PyExc_Exception)) return interrupt_.capture("interrupted");
      return caught_status();
    } catch (...) {
      return caught_status();
    }
  }
  template <typename Work>
  void report(const Work& work) {
    const GilTaken taken;
    try {
      work();
    } catch (py::error_already_set& raised) {
      raised.discard_as_unraisable("driftless, at the end of a staging");
    }
  }

  py::object make_target_;
  py::object target_ = py::none();
  py::object on_staged_ = py::none();
  std::shared_ptr<HeldTarget> native_;  // the target's
  std::shared_ptr<HeldReceiver> receiver_;
  PythonFailure interrupt_;
};

class HeldWorker {
 public:
  HeldWorker(std::int64_t rank, py::object make_target) {
    auto host = std::make_unique<PythonHost>(std::move(make_target));
    host_ = host.get();
    worker_ = Worker::make(rank, std::move(host));
  }
  HeldWorker(const HeldWorker&) = delete;
  HeldWorker& operator=(const HeldWorker&) = delete;
  // A staging thread keeps the worker alive, and drops it when it ends. The end of the process does
  // not wait for that thread.
  ~HeldWorker() {  // NOLINT(bugprone-exception-escape): only without an interpreter
    const GilReleased released;
    worker_.reset();
  }

  [[nodiscard]] PythonHost& host() { return *host_; }
  [[nodiscard]] const Worker& worker() const { return *worker_; }
  // Calls the worker without the GIL.
  template <typename Work>
  std::string call(const Work& work) {
    if (host_->receiver() != nullptr) {
      static_cast<void>(host_->receiver()->session());  // raises in a forked process
    }
    std::string reply = without_gil([&] { return work(*worker_); });
    host_->rethrow();
    return reply;
  }
  bool wait(std::optional<double> timeout_s) {
    const milliseconds limit = timeout_s ? milliseconds_of(*timeout_s, "timeout_s") : kMaxDuration;
    const Deadline deadline = Deadline::after(limit);
    while (!without_gil([&] { return worker_->wait(deadline.sooner(kSignalSlice).remaining()); })) {
      if (deadline.expired()) return false;
      look_at_signals();
    }
    return true;
  }

 private:
  std::shared_ptr<Worker> worker_;
  PythonHost* host_;  // the worker's
};

}  // namespace

void bind_worker(py::module_& module) {
  using Text = const std::string&;
  module.attr("TORN_VERSION") = kTornVersion;
  module.def(
      "worker_reply",
      [](Text nonce, std::int64_t rank, const std::optional<std::string>& error) {
        WorkerReply reply;
        reply.nonce = nonce;
        reply.rank = rank;
        reply.error = error;
        return reply_json(reply);
      },
      py::arg("nonce"), py::arg("rank"), py::arg("error"),
      "The reply of a rank whose worker could not be called, as JSON text.");
  py::class_<HeldWorker>(
      module, "Worker",
      "One rank of an engine that follows a run. Replies are JSON text (rank_receiver.py).")
      .def(py::init<std::int64_t, py::object>(), py::arg("rank"), py::arg("make_target"))
      .def(
          "open",
          [](HeldWorker& held, Text config, const std::vector<std::string>& sets, Text nonce,
             Text take_over) {
            return held.call([&](Worker& its) { return its.open(config, sets, nonce, take_over); });
          })
      .def("stage",
           [](HeldWorker& held, double timeout_s, Text nonce, Text ticket) {
             const milliseconds wait = milliseconds_of(timeout_s, "timeout_s");
             return held.call([&](Worker& its) { return its.stage(wait, nonce, ticket); });
           })
      .def("status", [](HeldWorker& held, Text nonce) { return held.worker().status(nonce); })
      .def("commit",
           [](HeldWorker& held, std::optional<std::int64_t> version, Text nonce, Text ticket) {
             return held.call([&](Worker& its) { return its.commit(version, nonce, ticket); });
           })
      .def("refuse",
           [](HeldWorker& held, Text why, Text nonce) {
             return held.call([&](Worker& its) { return its.refuse(why, nonce); });
           })
      .def("rollback",
           [](HeldWorker& held, std::int64_t version, Text nonce) {
             return held.call([&](Worker& its) { return its.rollback(version, nonce); });
           })
      .def("shares",
           [](HeldWorker& held, bool sweep, Text nonce) {
             return held.call([&](Worker& its) { return its.shares(sweep, nonce); });
           })
      .def("read",
           [](HeldWorker& held, Text tensor, std::uint64_t first, std::uint64_t units, Text nonce) {
             return held.call([&](Worker& its) { return its.read(tensor, first, units, nonce); });
           })
      .def("close",
           [](HeldWorker& held, Text nonce) {
             return held.call([&](Worker& its) { return its.close(nonce); });
           })
      .def("wait", &HeldWorker::wait, py::arg("timeout_s") = py::none(),
           "Waits until the thread of stage() has ended. Returns False if it did not end in time.")
      .def_property_readonly("target", [](HeldWorker& held) { return held.host().python_target(); })
      .def_property_readonly("id",
                             [](HeldWorker& held) -> std::optional<std::string> {
                               if (held.host().receiver() == nullptr) return std::nullopt;
                               return held.host().receiver()->id();
                             })
      .def("set_on_staged", [](HeldWorker& held, py::object called) {
        held.host().set_on_staged(std::move(called));
      });
}

}  // namespace driftless::python
