// SPDX-License-Identifier: Apache-2.0
// HeldReceiver: a receiver whose job and target Python holds. It is driftless.Receiver, and the
// receiver of a Worker (worker.cpp).
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "module/job.h"
#include "module/source.h"
#include "module/target.h"
#include "plugin/job/joined_road.h"

namespace driftless::python {

// How long a wait lasts before it checks Python's signals.
inline constexpr std::chrono::milliseconds kSignalSlice{100};
inline void look_at_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

class HeldReceiver final : public HeldSession<Receiver> {
 public:
  HeldReceiver(std::shared_ptr<Job> job, std::shared_ptr<HeldTarget> target,
               const std::optional<std::string>& id, const py::object& pause,
               const py::object& resume, const py::object& before_read,
               const std::string& take_over, std::chrono::milliseconds wait)
      : HeldSession(std::move(job), JobRole::kRollout, "receiver"), target_(std::move(target)) {
    ReceiverOptions options;
    options.pause = callback(pause, "pause");
    options.resume = callback(resume, "resume");
    options.before_read = callback<std::uint64_t>(before_read, "before_read");
    if (!take_over.empty()) options.take_over = take(hash128_from_hex(take_over));
    if (target_->device() != nullptr) {
      options.pause = pause_and_wait(options.pause, options.resume);
    }
    const std::shared_ptr<JobProcess>& process = job_->shared_process();
    const InUse::Turn turn = job_->in_use().take("the job");
    use_ = target_->in_use().hold("the target");
    target_->set_user(&in_use());
    try {
      open(process, id, options, wait);
    } catch (...) {
      drop_now();
      let_go();
      throw;
    }
  }
  HeldReceiver(const HeldReceiver&) = delete;
  HeldReceiver& operator=(const HeldReceiver&) = delete;
  ~HeldReceiver() override {  // NOLINT(bugprone-exception-escape): only without an interpreter
    drop_now();
    let_go();
  }

  Status drop() override {
    Status dropped = HeldSession::drop();
    let_go();
    return dropped;
  }
  [[nodiscard]] const std::string& id() const { return id_; }
  // Takes a turn outside of call(). Destroying the result ends the turn and refreshes the state; it
  // needs no GIL.
  [[nodiscard]] std::shared_ptr<const void> use() { return std::make_shared<const Use>(*this); }

  [[nodiscard]] bool stage(std::chrono::milliseconds wait) {
    Receiver& made = session();
    const InUse::Turn turn = take_turn();
    const Deadline deadline = Deadline::after(wait);
    for (;;) {
      const bool staged = native_call([&] { return made.stage(deadline.sooner(kSignalSlice)); });
      if (staged || deadline.expired()) return staged;
      look_at_signals();
    }
  }

  [[nodiscard]] std::optional<std::uint64_t> staged_version() {
    return call([](Receiver& made) -> Result<std::optional<std::uint64_t>> {
      return made.staged_version();
    });
  }

  // By tensor name; none if the run does not publish them.
  [[nodiscard]] std::optional<std::map<std::string, std::string>> tensor_digests() {
    return call([](Receiver& made) -> Result<std::optional<std::map<std::string, std::string>>> {
      const std::vector<Digest>& digests = made.tensor_digests();
      if (digests.empty()) return std::optional<std::map<std::string, std::string>>();
      std::map<std::string, std::string> named;
      for (std::size_t i = 0; i < digests.size(); ++i) {
        named.emplace(made.layout()[i].name, to_hex(digests[i]));
      }
      return std::optional(std::move(named));
    });
  }

  // Why the weights could not be proven; none: they are proven, or the target holds no version.
  [[nodiscard]] std::optional<std::string> unproven() {
    return call([](Receiver& made) -> Result<std::optional<std::string>> {
      if (made.unproven().empty()) return std::optional<std::string>();
      return std::optional(made.unproven());
    });
  }
  [[nodiscard]] bool proven() { return state().valid && !unproven(); }

  // As of the last call.
  [[nodiscard]] const TargetState& state() {
    static_cast<void>(session());
    return target_->state();
  }

 private:
  struct Use {
    explicit Use(HeldReceiver& its) : of(its), turn(its.take_turn()) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      const GilTaken taken;
      of.refresh();
    }
    HeldReceiver& of;
    InUse::Turn turn;
  };
  void refresh() override {
    target_->refresh();
    job_->on_record().flush();
  }
  void let_go() {
    if (use_) target_->set_user(nullptr);
    use_.reset();
  }

  // Pauses the engine, then waits for its queued GPU work on the weights.
  [[nodiscard]] std::function<Status()> pause_and_wait(std::function<Status()> pause,
                                                       std::function<Status()> resume) {
    return [this, pause = std::move(pause), resume = std::move(resume)]() -> Status {
      if (pause) DRIFTLESS_RETURN_IF_ERROR(pause());
      const Status waited = target_->wait_for_stream();
      if (waited.ok() || !resume) return waited;
      const Status resumed = resume();
      return waited;
    };
  }

  // Drops the road without the GIL, because the road's threads may wait for it.
  struct Dropped {
    JoinedRoad& joined;
    ~Dropped() {
      const GilReleased released;
      joined = {};
    }
  };

  // Waits until the run is announced. After each slice it checks for signals and starts the wait
  // again from the beginning. Slices grow, so that a slow road can deliver the announcement in one.
  void open(const std::shared_ptr<JobProcess>& process, const std::optional<std::string>& id,
            const ReceiverOptions& callbacks, std::chrono::milliseconds wait) {
    const Deadline deadline = Deadline::after(wait);
    const std::optional<int> gpu = target_->gpu();
    if (const auto used = gpu ? gpu : torch_gpu()) process->use_gpu(*used);
    JoinedRoad joined = take(
        without_gil([&] { return join_road(job_->config(), process, id, Deadline::after(wait)); }));
    const Dropped dropped{joined};
    if (auto sink = job_->on_record().sink()) joined.records->keep(std::move(sink));
    joined.options.pause = callbacks.pause;
    joined.options.resume = callbacks.resume;
    joined.options.before_read = callbacks.before_read;
    joined.options.take_over = callbacks.take_over;
    for (std::chrono::milliseconds slice = 2 * kSignalSlice;; slice *= 2) {
      auto opened = without_gil([&] {
        return Receiver::open(joined.options, *joined.road, target_->target(),
                              deadline.sooner(slice));
      });
      if (opened.status().code() == StatusCode::kDeadlineExceeded && !deadline.expired()) {
        look_at_signals();
        continue;
      }
      if (!opened.ok()) failure_.rethrow();
      session_ = take(std::move(opened));
      break;
    }
    id_ = session_->id();
    refresh();
    if (session_->unproven().empty()) return;
    const std::string text = concat(session_->unproven(), "; it is reported as unproven");
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw py::error_already_set();
  }

  std::shared_ptr<HeldTarget> target_;
  std::unique_ptr<InUse::Turn> use_;  // of the target, as long as the receiver is open
  std::string id_;
};

}  // namespace driftless::python
