// SPDX-License-Identifier: Apache-2.0
// driftless.Agent: an agent of the host inside a Python process.
#include "plugin/agent/agent.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <nlohmann/json.hpp>

#include "module/bindings.h"
#include "module/receiver.h"

namespace driftless::python {
namespace {

py::object as_dict(const nlohmann::ordered_json& json) {
  const std::string text = json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return py::module_::import("json").attr("loads")(text);
}

class HeldAgent final : public HeldSession<Agent> {
 public:
  HeldAgent(std::shared_ptr<Job> job, std::string base, bool once, const py::object& on_record,
            const py::object& on_failure)
      : HeldSession(std::move(job), JobRole::kRollout, "agent") {
    check(check_agent_config(job_->config()));
    AgentRunOptions options;
    options.base = std::move(base);
    options.once = once;
    const auto recorded = callback<py::object>(on_record, "on_record");
    const auto failed = callback<std::string>(on_failure, "on_failure");
    const auto record = [recorded](const auto& made) {
      const py::gil_scoped_acquire acquired;
      if (recorded) static_cast<void>(recorded(as_dict(to_json(made))));
    };
    options.delivered = record;
    options.updated = record;
    options.failed = [failed](const Status& why) {
      if (failed) static_cast<void>(failed(why.to_string()));
    };
    session_ = std::make_unique<Agent>(job_->config(), job_->process(), std::move(options));
    call(&Agent::open);
  }

  [[nodiscard]] bool step() {
    const bool over = call(&Agent::step);
    failure_.rethrow();  // the exception of a callback
    return over;
  }
  void run() {
    while (!step()) look_at_signals();
  }
  [[nodiscard]] py::object end(bool confirm) {
    Agent& made = session();
    AgentEnd end;
    {
      const InUse::Turn turn = take_turn();
      end = without_gil([&] { return made.end(confirm); });
      drop_now();
    }
    check(end.digests);
    nlohmann::ordered_json json = {
        {"version", end.version}, {"digest", end.digest ? to_hex(*end.digest) : ""},
        {"workers", end.workers}, {"all_have_it", end.all_have_it},
        {"behind", end.lagging},  {"engines", nlohmann::ordered_json::array()}};
    for (const EngineRecord& engine : end.engines) json["engines"].push_back(to_json(engine));
    return as_dict(json);
  }

 private:
  void refresh() override {}
};

}  // namespace

void bind_agent(py::module_& module) {
  py::class_<HeldAgent, std::shared_ptr<HeldAgent>>(
      module, "Agent",
      "Does in this process what the command `driftless agent` does: fetches each version once "
      "from "
      "the road of `job` (role rollout), and brings the configuration's engines to it. `base`: the "
      "checkpoint to copy if agent.checkpoint_dir is missing. `once`: the agent ends when all "
      "engines hold the road's newest version. on_record(dict) gets the record of every hand-over "
      "and update; on_failure(text) gets every failure that is retried.")
      .def(py::init([](const std::shared_ptr<Job>& job, const std::string& base, bool once,
                       const py::object& on_record, const py::object& on_failure) {
             auto made = std::make_shared<HeldAgent>(job, base, once, on_record, on_failure);
             job->enter(made);
             return made;
           }),
           py::arg("job"), py::arg("base") = "", py::arg("once") = false,
           py::arg("on_record") = py::none(), py::arg("on_failure") = py::none())
      .def(
          "step", &HeldAgent::step,
          "Waits briefly for a version and hands it over. Returns True when the agent is done: the "
          "run has ended (or `once` is set), and every engine has the last version or ran out of "
          "time for it.")
      .def("run", &HeldAgent::run, "Calls step() until it returns True. Ctrl-C interrupts it.")
      .def("end", &HeldAgent::end, py::arg("confirm") = true,
           "Leaves the road, the engines and the workers. Returns a dict with the versions that "
           "they "
           "hold. `confirm`: first queries the engines once more.");
}

}  // namespace driftless::python
