// SPDX-License-Identifier: Apache-2.0
// driftless._native.EngineDriver: the state machine that drives engines, for drive.py. Results and
// replies are passed as JSON text.
#include "plugin/engines/engine_driver.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "module/bindings.h"
#include "plugin/engines/engine_notifier.h"
#include "plugin/engines/engine_places.h"
#include "plugin/engines/server_calls.h"

namespace driftless::python {
namespace {

namespace py = pybind11;
using std::chrono::milliseconds;

std::int64_t ms_of(double seconds) { return static_cast<std::int64_t>(seconds * 1e3); }

// Checks Python's signals before every call. After a signal the driver stops at the next safe
// point, and resumes an engine that it paused.
class SignalledTransport final : public EngineTransport {
 public:
  SignalledTransport(std::unique_ptr<EngineTransport> transport, std::atomic<bool>& stop)
      : transport_(std::move(transport)), stop_(&stop) {}

  EngineAnswer carry(const EngineCall& call) override {
    look_at_signals();
    return transport_->carry(call);
  }
  void ended() override { transport_->ended(); }
  [[nodiscard]] const std::string& name() const override { return transport_->name(); }
  [[nodiscard]] bool stopping() const override { return *stop_; }

  // Raises the exception of a signal handler, if there was one.
  void rethrow() { failure_.rethrow(); }

 private:
  void look_at_signals() {
    const py::gil_scoped_acquire acquired;
    if (*stop_ || PyErr_CheckSignals() == 0) return;
    *stop_ = true;
    try {
      throw py::error_already_set();
    } catch (...) {
      const Status ignored = failure_.capture("a signal");
    }
  }

  std::unique_ptr<EngineTransport> transport_;
  std::atomic<bool>* stop_;
  PythonFailure failure_;
};

// Makes a Python function carry the calls to an engine in this process. An exception of the
// function is the failure of the call.
InProcessCall python_call(py::function function) {
  // The deleter takes the GIL, whichever thread drops the last copy.
  const std::shared_ptr<py::function> held(new py::function(std::move(function)),
                                           [](py::function* dropped) {
                                             const py::gil_scoped_acquire acquired;
                                             delete dropped;
                                           });
  return [held](const std::string& operation, const std::string& arguments) -> Result<std::string> {
    const py::gil_scoped_acquire acquired;
    try {
      return (*held)(operation, arguments).cast<std::string>();
    } catch (py::error_already_set& raised) {
      const bool none = raised.matches(PyExc_NotImplementedError);
      return error(none ? StatusCode::kUnsupported : StatusCode::kIo, shown(raised.what(), 1'000));
    } catch (const std::exception& problem) {
      return error(StatusCode::kIo, problem.what());
    }
  };
}

class HeldDriver {
 public:
  // `make` gets the flag that ends calls in progress.
  template <typename Make>
  HeldDriver(const std::optional<std::string>& source, Make&& make)
      : transport_(make(&stop_), stop_) {
    DriverOptions options;
    options.source = source.value_or("");
    options.ticket = new_nonce();
    driver_ = std::make_unique<EngineDriver>(std::move(options));
  }

  // Opens, then compares the ranks' shares with the digest that they report. Every server is
  // checked once, before its first update.
  std::string open() {
    DriverResult opened = carry(driver_->begin_open());
    if (const Status proven = prove_first(opened); !proven.ok()) opened.status = proven;
    return text_of(opened);
  }
  std::string start_staging(double timeout_s) {
    if (const auto refused = prove_another()) return *refused;
    return run(driver_->begin_staging(ms_of(timeout_s)));
  }
  std::string wait_staged(double timeout_s) {
    return run(driver_->begin_wait_staged(ms_of(timeout_s)));
  }
  std::string update(double timeout_s, bool staged) {
    driver_->set_stage_ms(ms_of(timeout_s));
    const std::optional<std::string> refused = staged ? std::nullopt : prove_another();
    return refused ? *refused : run(driver_->begin_update({}, staged));
  }
  std::string close() { return run(driver_->begin_close()); }
  // The ranks' current status, whatever the state of the driver.
  std::string ask() {
    EngineCall call;
    call.op = EngineOp::kAsk;
    call.pause = driver_->pause_state();
    const EngineAnswer answer = without_gil([&] { return transport_.carry(call); });
    transport_.rethrow();
    check(answer.status.with_context(transport_.name()));
    return replies_of(answer.ranks).dump();
  }

  // Adds up the ranks' shares and compares them with the version's digests.
  std::string prove(bool sweep) {
    const Result<std::vector<RankShares>> asked =
        without_gil([&] { return ask_shares(transport_, sweep, driver_->pause_state()); });
    transport_.rethrow();
    const std::vector<RankShares> ranks = take(asked);
    return proof_to_json(add_up(ranks), ranks, false).dump();
  }

  // Up to `limit` elements at which the ranks' weights differ from the checkpoint at `path`.
  std::string places(const std::string& path, std::size_t limit) {
    const Result<DifferentPlaces> found = without_gil([&]() -> Result<DifferentPlaces> {
      DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                                 Checkpoint::open(posix_file_system(), path));
      return find_places(transport_, checkpoint, limit, driver_->pause_state());
    });
    transport_.rethrow();
    return places_to_json(take(found)).dump();
  }

 private:
  static Json replies_of(const std::vector<RankReply>& replies) {
    Json all = Json::array();
    for (const RankReply& reply : replies) {
      const Result<Json> parsed = parse_json(reply.text, "a rank's reply");
      all.push_back(parsed.ok() ? *parsed : Json::object());
    }
    return all;
  }

  Status prove_first(const DriverResult& opened) {
    Status proven =
        without_gil([&] { return first_.ask(opened, transport_, driver_->pause_state()); });
    transport_.rethrow();
    return proven;
  }
  // Checks a server that has replaced the one that open() checked. Returns the text of a refused
  // open() if its weights are not proven.
  std::optional<std::string> prove_another() {
    if (first_.asked()) return std::nullopt;
    DriverResult opened = carry(driver_->begin_open());
    const Status proven = prove_first(opened);
    if (proven.ok()) return std::nullopt;  // other failures of open() show in the update
    opened.status = proven;
    return text_of(opened);
  }

  std::string run(EngineCall first) {
    const DriverResult result = carry(std::move(first));
    first_.add(result.replies);
    return text_of(result);
  }

  DriverResult carry(EngineCall first) {
    stop_ = false;
    DriverResult result =
        without_gil([&] { return run_request(*driver_, std::move(first), transport_); });
    transport_.rethrow();
    return result;
  }

  static std::string text_of(const DriverResult& result) {
    const Json outcome = {{"ok", result.status.ok()},
                          {"error", std::string(result.status.message())},
                          {"updated", result.updated},
                          {"left_paused", result.left_paused},
                          {"from_version", result.from_version},
                          {"version", result.identity.version},
                          {"run", result.identity.run},
                          {"digest", result.identity.digest},
                          {"staged", result.staged ? Json(*result.staged) : Json()},
                          {"replies", replies_of(result.replies)},
                          {"timings",
                           {{"staged_ms", result.times.stage_ms},
                            {"pause_ms", result.times.pause_ms},
                            {"commit_ms", result.times.apply_ms},
                            {"resume_ms", result.times.resume_ms}}}};
    return outcome.dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  std::atomic<bool> stop_{false};
  FirstProof first_;
  SignalledTransport transport_;
  std::unique_ptr<EngineDriver> driver_;
};

using Source = std::optional<std::string>;

std::unique_ptr<HeldDriver> in_process(py::function call, const Source& source) {
  return std::make_unique<HeldDriver>(source, [&](const std::atomic<bool>*) {
    return make_in_process_transport(python_call(std::move(call)));
  });
}

EngineEndpoint endpoint(const std::string& url, const std::string& token) {
  EngineEndpoint engine{.url = url, .token = token};
  check(prepare_endpoint(engine));
  return engine;
}

std::unique_ptr<HeldDriver> vllm(const std::string& url, const Source& source, double timeout_s,
                                 const std::string& token) {
  const EngineEndpoint engine = endpoint(url, token);
  return std::make_unique<HeldDriver>(source, [&](const std::atomic<bool>* stop) {
    return make_vllm_transport(EngineLink(engine, milliseconds(ms_of(timeout_s)), stop));
  });
}

std::unique_ptr<HeldDriver> sglang(const std::string& url, const Source& source, double timeout_s,
                                   const std::string& token, const std::string& loader,
                                   const std::string& shm_dir) {
  const EngineEndpoint engine = endpoint(url, token);
  const milliseconds timeout(ms_of(timeout_s));
  return std::make_unique<HeldDriver>(source, [&](const std::atomic<bool>* stop) {
    return take(make_sglang_transport(EngineLink(engine, timeout, stop), loader, timeout, shm_dir));
  });
}

// Calls SGLang's HTTP server: POST with a body, otherwise GET, which returns JSON text.
std::string call_sglang(const std::string& url, const std::string& path,
                        const std::optional<std::string>& body, double timeout_s) {
  const EngineLink link({.url = url}, milliseconds(ms_of(timeout_s)), nullptr);
  return take(without_gil([&]() -> Result<std::string> {
    if (body) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Json arguments, parse_json(*body, path));
      const bool loads = path == "/update_weights_from_disk";
      DRIFTLESS_RETURN_IF_ERROR(loads ? sglang_load(link, arguments)
                                      : sglang_post(link, path, arguments, true));
      return std::string();
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, link.get(path, true));
    return answer.dump();
  }));
}

// Notifies one engine that reads hf_delta directories itself.
void pull_weights(const std::string& url, const std::string& checkpoint, const std::string& source,
                  std::uint64_t version, double timeout_s) {
  NotifyOptions options;
  options.engines.push_back(
      {.url = url, .action = EngineAction::kPullWeights, .local_checkpoint_dir = checkpoint});
  options.timeout = milliseconds(ms_of(timeout_s));
  options.retries = 0;
  const std::unique_ptr<EngineNotifier> notifier = take(EngineNotifier::create(options));
  PublishedVersion published;
  published.source_dir = source;
  published.version = version;
  check(without_gil([&] {
    return notifier->notify(published, Deadline::after(4 * options.timeout)).front().status;
  }));
}

}  // namespace

void bind_engine_driver(py::module_& module) {
  module.def("pull_weights", &pull_weights, py::arg("url"), py::arg("checkpoint"),
             py::arg("source"), py::arg("version"), py::arg("timeout_s"));
  module.def("sglang_call", &call_sglang, py::arg("url"), py::arg("path"), py::arg("body"),
             py::arg("timeout_s"));
  const auto source = py::arg("source") = py::none();
  py::class_<HeldDriver>(
      module, "EngineDriver",
      "Brings all ranks of one engine to a version, or leaves all at the version before. Results "
      "are JSON text (drive.py).")
      .def_static("in_process", &in_process, py::arg("call"), source,
                  "`call(operation, arguments)` carries a call to the engine; arguments and result "
                  "are JSON text. It raises NotImplementedError if the engine lacks the operation.")
      .def_static("vllm", &vllm, py::arg("url"), source, py::arg("timeout_s") = 120.0,
                  py::arg("token") = "")
      .def_static("sglang", &sglang, py::arg("url"), source, py::arg("timeout_s") = 120.0,
                  py::arg("token") = "", py::kw_only(), py::arg("loader"), py::arg("shm_dir"))
      .def("open", &HeldDriver::open)
      .def("start_staging", &HeldDriver::start_staging, py::arg("timeout_s"))
      .def("wait_staged", &HeldDriver::wait_staged, py::arg("timeout_s"))
      .def("update", &HeldDriver::update, py::arg("timeout_s"), py::arg("staged"))
      .def("ask", &HeldDriver::ask)
      .def("prove", &HeldDriver::prove, py::arg("sweep"))
      .def("places", &HeldDriver::places, py::arg("checkpoint"), py::arg("limit"))
      .def("close", &HeldDriver::close);
}

}  // namespace driftless::python
