// SPDX-License-Identifier: Apache-2.0
#include "module/job.h"

#include <pybind11/stl.h>

#include <cmath>
#include <variant>

#include "collectives/object_store/object_store_options.h"
#include "core/file_system.h"
#include "core/setting_values.h"
#include "module/bindings.h"
#include "module/python_store.h"
#include "plugin/interchange/layouts.h"
#include "plugin/job/job_process.h"
#include "plugin/job/joined_road.h"

namespace driftless::python {
namespace {

double seconds_of(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

JobRole parse_role(const std::string& text) {
  for (const JobRole role : {JobRole::kTrainer, JobRole::kRollout, JobRole::kBystander}) {
    if (text == to_string(role)) return role;
  }
  fail(StatusCode::kInvalidArgument, "role '", text, "': expected trainer, rollout or bystander");
}

}  // namespace

InUse::Turn::Turn(std::atomic_flag& flag, std::string_view what) : flag_(flag) {
  if (flag_.test_and_set()) {
    fail(
        StatusCode::kBusy, what,
        " is in use by another thread, or by the call that runs this callback: one call at a time");
  }
}

Job::Job(Config config, JobRole role, const Launch& launch, py::object on_record)
    : config_(std::move(config)),
      role_(role),
      launched_(launch.mpi),
      on_record_(std::move(on_record)) {
  process_ = take(without_gil([&] { return join_job(road_table(), config_, role_, launch); }));
}

// Every member holds a reference to the job, so no member is left here.
Job::~Job() {  // NOLINT(bugprone-exception-escape): only without an interpreter
  let_go();
}

const std::shared_ptr<JobProcess>& Job::shared_process() {
  if (process_ == nullptr) fail(StatusCode::kInvalidArgument, "the job is closed");
  return process_;
}

Status Job::drop_members() {
  Status first;
  for (const std::weak_ptr<JobMember>& member : members_) {
    const std::shared_ptr<JobMember> alive = member.lock();
    const Status dropped = alive != nullptr ? alive->drop() : Status();
    if (first.ok()) first = dropped;
  }
  members_.clear();
  return first;
}

void Job::close(std::chrono::milliseconds wait) {
  if (process_ == nullptr) return;
  const InUse::Turn turn = in_use_.take("the job");
  const Status dropped_status = drop_members();
  std::shared_ptr<JobProcess> process = std::move(process_);
  const Status closed = without_gil([&] {
    Status ended = process->close(Deadline::after(wait));
    process.reset();
    return ended;
  });
  check(dropped_status);
  check(closed);
}

void Job::leave() {
  if (process_ == nullptr) return;
  const InUse::Turn turn = in_use_.take("the job");  // a member that is opening uses the process
  let_go();
}

void Job::let_go() {
  static_cast<void>(drop_members());
  std::shared_ptr<JobProcess> process = std::move(process_);
  const GilReleased released;
  process.reset();
}

std::chrono::milliseconds milliseconds_of(double seconds, std::string_view what) {
  const double longest = seconds_of(kMaxDuration);
  if (!(seconds >= 0) || seconds > longest) {
    fail(StatusCode::kInvalidArgument, what, " is ", seconds, " seconds: expected 0 to ", longest);
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

std::chrono::milliseconds Job::wait_or(std::optional<double> timeout_s) const {
  return timeout_s ? milliseconds_of(*timeout_s, "timeout_s") : config_.connect_deadline;
}

void open_python_store(Config& config) {
  if (config.chosen<ObjectStoreOptions>() == nullptr) return;
  auto& options = config.of_road<ObjectStoreOptions>();
  if (!options.url.starts_with("hf://")) return;
  const py::object open = py::module_::import("driftless.object_stores").attr("open_store");
  options.store = make_python_store(open(options.url), options.spool_dir);
}

namespace {

void bind_config(py::module_& module) {
  const auto overrides = py::arg("overrides") = std::vector<std::string>();
  py::class_<Config, std::shared_ptr<Config>>(
      module, "Config", "The configuration of a job; docs/operate/configuration.md has its keys.")
      .def_static(
          "load",
          [](const py::object& path, const std::vector<std::string>& settings) {
            return take(load_config(posix_file_system(), path_of(path), settings));
          },
          py::arg("path"), overrides)
      .def_static(
          "parse",
          [](const std::string& text, const std::vector<std::string>& settings) {
            return take(parse_config(text, "configuration", settings));
          },
          py::arg("text"), overrides)
      .def_static(
          "read",
          [](const std::string& config, const std::vector<std::string>& settings) {
            return take(read_config(posix_file_system(), config, settings));
          },
          py::arg("config"), overrides, "Reads a configuration: `config` is a path or YAML text.")
      .def_property_readonly("buffer_bytes",
                             [](const Config& config) { return config.publisher.buffer_bytes; })
      .def_property_readonly("chunk_bytes",
                             [](const Config& config) { return config.receiver.chunk_bytes; })
      .def_property_readonly("road", &Config::road_row,
                             "The name of the road, with the variant that the settings select.")
      .def_property_readonly(
          "directory",
          [](const Config& config) -> std::optional<std::string> {
            if (config.kind().directory == nullptr) return std::nullopt;
            return config.kind().directory(config.road_options());
          },
          "The directory in which receivers read the files of a version; None: the road has none.")
      .def_property_readonly(
          "takes_blocks",
          [](const Config& config) {
            return publication_format(config.publisher.layout).takes_blocks;
          },
          "Whether ranks may publish blocks of tensors; if not, they publish whole tensors.")
      .def_property_readonly(
          "takes_groups", [](const Config& config) { return takes_groups(road_table(), config); },
          "Whether trainers that do not use MPI to form their group can use the road.")
      .def_property_readonly(
          "publish_s", [](const Config& config) { return seconds_of(config.publisher.deadline); })
      .def_property_readonly(
          "connect_s", [](const Config& config) { return seconds_of(config.connect_deadline); })
      .def(
          "check_available",
          [](const Config& config, const std::optional<std::string>& role) {
            check(check_available(road_table(), config, take(launch_of_process()),
                                  role ? std::optional(parse_role(*role)) : std::nullopt));
          },
          py::arg("role") = py::none(),
          "Raises an error if this machine lacks something that a Job of this configuration needs: "
          "a part that was not built, or, for a job of `role`, an MPI launcher. Contacts no other "
          "process.")
      .def("settings", [](const Config& config) {
        py::dict settings;
        for (const auto& [key, value] : effective_settings(config)) settings[py::str(key)] = value;
        return settings;
      });
  py::class_<Backend> backend(module, "Backend");
  def_fields(backend, "name", &Backend::name, "help", &Backend::help, "built", &Backend::built,
             "why_not", &Backend::why_not);
  backend.def("__repr__", [](const Backend& one) {
    return concat("Backend(", one.name, ", ",
                  one.built ? std::string("built") : "not built: " + one.why_not, ")");
  });
  module.def("backends", [] { return backends(); });
}

// The Launch for Job's argument `launched`: a Launch, whether MPI joins the processes, or nothing.
// Without MPI, only a group that the hub forms needs the launcher's variables.
Launch launch_given(const std::optional<std::variant<bool, Launch>>& given, const Config& config) {
  if (given && std::holds_alternative<Launch>(*given)) return std::get<Launch>(*given);
  const bool* const mpi = given ? &std::get<bool>(*given) : nullptr;
  if (mpi != nullptr && !config.hub_group) return {.mpi = *mpi};
  Launch launch = take(launch_of_process());
  if (mpi != nullptr) launch.mpi = *mpi;
  return launch;
}

// A group of the job's trainers for Python, independent of the groups of the job's publishers.
class HeldGroup final : public JobMember {
 public:
  explicit HeldGroup(std::shared_ptr<Job> job) : job_(std::move(job)) {
    group_ = job_->call([](JobProcess& process) { return process.group(); });
  }
  HeldGroup(const HeldGroup&) = delete;
  HeldGroup& operator=(const HeldGroup&) = delete;
  ~HeldGroup() override { static_cast<void>(HeldGroup::drop()); }

  [[nodiscard]] Group& group() {
    if (group_ == nullptr) fail(StatusCode::kInvalidArgument, "the group's job is closed");
    return *group_;
  }
  template <typename Work>
  auto call(const Work& work) {
    Group& on = group();
    const InUse::Turn turn = in_use_.take("the group");
    return take(without_gil([&] { return work(on); }));
  }
  [[nodiscard]] py::list gather(const py::bytes& message, double timeout_s) {
    const std::string text = message;
    const Deadline deadline = Deadline::after(milliseconds_of(timeout_s, "timeout_s"));
    py::list all;
    for (const std::string& each : call([&](Group& on) { return on.gather(text, deadline); })) {
      all.append(py::bytes(each));
    }
    return all;
  }
  [[nodiscard]] py::bytes broadcast(const py::bytes& message, double timeout_s) {
    const std::string text = message;
    const Deadline deadline = Deadline::after(milliseconds_of(timeout_s, "timeout_s"));
    return call([&](Group& on) { return on.broadcast(text, deadline); });
  }
  Status drop() override {
    without_gil([&] { group_.reset(); });
    return {};
  }

 private:
  std::shared_ptr<Job> job_;
  std::unique_ptr<Group> group_;
  InUse in_use_;
};

void bind_group(py::module_& module) {
  py::class_<HeldGroup, std::shared_ptr<HeldGroup>>(
      module, "Group",
      "The trainers of a job, as its launcher or hub.group joined them. All of them make the same "
      "calls in the same order.")
      .def(py::init([](const std::shared_ptr<Job>& job) {
             auto made = std::make_shared<HeldGroup>(job);
             job->enter(made);
             return made;
           }),
           py::arg("job"))
      .def_property_readonly("rank", [](HeldGroup& self) { return self.group().rank(); })
      .def_property_readonly("size", [](HeldGroup& self) { return self.group().size(); })
      .def(
          "begin_epoch",
          [](HeldGroup& self, std::uint64_t number) { self.group().begin_epoch(number); },
          py::arg("number"),
          "Discards messages of earlier epochs. After a failure all ranks begin the same new "
          "epoch; "
          "numbers ascend.")
      .def("gather", &HeldGroup::gather, py::arg("data"), py::arg("timeout_s"),
           "Returns all ranks' bytes on rank 0, and an empty list on the others.")
      .def("broadcast", &HeldGroup::broadcast, py::arg("data"), py::arg("timeout_s"),
           "Returns rank 0's bytes on every rank.");
}

void bind_launch(py::module_& module) {
  py::class_<Launch> launch(module, "Launch",
                            "The place that a launcher gave this process; core/launch.h.");
  def_fields(launch, "mpi", &Launch::mpi, "rank", &Launch::rank, "world", &Launch::world,
             "local_rank", &Launch::local_rank, "address", &Launch::address, "attempt",
             &Launch::attempt);
  launch.def_property_readonly(
      "launcher", [](const Launch& one) { return std::string(to_string(one.launcher)); });
  launch.def("__repr__", [](const Launch& one) {
    return concat("Launch(", to_string(one.launcher), one.mpi ? ", mpi" : "", ", rank ", one.rank,
                  " of ", one.world, ", local rank ", one.local_rank, ", address '", one.address,
                  "', attempt '", one.attempt, "')");
  });
  module.def(
      "launch",
      [](std::optional<std::string> launcher, std::optional<unsigned> rank,
         std::optional<unsigned> world, std::optional<unsigned> local_rank,
         std::optional<std::string> address, std::optional<std::string> attempt) {
        return take(launch_of_process({std::move(launcher), rank, world, local_rank,
                                       std::move(address), std::move(attempt)}));
      },
      py::kw_only(), py::arg("launcher") = py::none(), py::arg("rank") = py::none(),
      py::arg("world") = py::none(), py::arg("local_rank") = py::none(),
      py::arg("address") = py::none(), py::arg("attempt") = py::none(),
      "The place of this process, from the environment variables of the innermost launcher. "
      "Arguments override them.");
  module.def("launched_by_mpi", [] { return take(launch_of_process()).mpi; }, "launch().mpi");
  py::class_<Waiting>(module, "Waiting",
                      "Prints from time to time what the process waits for; core/waiting.h.")
      .def(py::init())
      .def(
          "look",
          [](Waiting& self, const py::function& whom) {
            self.look([&] { return whom().cast<std::string>(); });
          },
          py::arg("whom"), "Calls `whom` only if a line is due, and prints what it returns.")
      .def("restart", &Waiting::restart);
}

}  // namespace

void bind_job(py::module_& module) {
  bind_config(module);
  bind_launch(module);
  py::class_<Job, std::shared_ptr<Job>> job(
      module, "Job",
      "This process as a member of a job. Only the thread that made it may use it. `role`: "
      "trainer, "
      "rollout or bystander. on_record(dict) gets the record of each version, and of each engine "
      "that a trainer notifies, on the thread that called publish(), wait() or commit(); "
      "docs/operate/metrics.md has the keys. The first exception of on_record is printed.");
  job.def(py::init([](Config config, const std::string& role,
                      const std::optional<std::variant<bool, Launch>>& launched,
                      const py::object& on_record) {
            open_python_store(config);
            const Launch launch = launch_given(launched, config);
            return std::make_shared<Job>(std::move(config), parse_role(role), launch, on_record);
          }),
          py::arg("config"), py::arg("role"), py::arg("launched") = py::none(),
          py::arg("on_record") = py::none());
  job.def_property_readonly("role",
                            [](const Job& self) { return std::string(to_string(self.role())); });
  def_fields(job, "launched", &Job::launched, "closed", &Job::closed);
  job.def_property_readonly("rank", [](Job& self) { return self.process().rank(); })
      .def_property_readonly("trainers", [](Job& self) { return self.process().trainers(); })
      .def_property_readonly("rollouts", [](Job& self) { return self.process().rollouts(); })
      .def_property_readonly("together", [](Job& self) { return self.process().together(); })
      .def(
          "tell_end",
          [](Job& self, const std::string& text, std::optional<double> timeout_s) {
            const auto wait = self.wait_or(timeout_s);
            self.call([&](JobProcess& process) {
              return process.publish_end(text, Deadline::after(wait));
            });
          },
          py::arg("text"), py::arg("timeout_s") = py::none())
      .def("hear_end", [](Job& self) { return self.call(&JobProcess::fetch_end); })
      .def(
          "close",
          [](Job& self, std::optional<double> timeout_s) { self.close(self.wait_or(timeout_s)); },
          py::arg("timeout_s") = py::none(),
          "Ends the job in order: closes its publishers and receivers, then waits for the other "
          "processes. Collective.")
      .def("leave", &Job::leave,
           "Leaves the job after a failure, without waiting for other processes.")
      .def(
          "abandon", [](Job& self, int exit_code) { self.process().abandon(exit_code); },
          py::arg("exit_code") = 1, "Ends this process and the whole job. Does not return.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Job& self, const py::object& type, const py::object&, const py::object&) {
        // After a failure the other processes may wait in another call: do not wait for them.
        if (type.is_none()) {
          self.close(self.wait_or({}));
        } else {
          self.leave();
        }
      });
  bind_group(module);
}

}  // namespace driftless::python
