// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "core/line_log.h"
#include "formats/manifest.h"
#include "formats/run_info.h"
#include "plugin/job/devices.h"
#include "plugin/job/publisher_session.h"
#include "tools/cli/commands.h"
#include "tools/cli/job.h"
#include "tools/cli/job_progress.h"
#include "tools/cli/step_weights.h"
#include "tools/synth.h"
#include "tools/temporary_directory.h"

namespace driftless::cli {
namespace {

constexpr unsigned kMostSynthesized = 16;  // checkpoints on disk, played forth and back
constexpr int kMostFailures = 3;           // consecutive ones, of one version
constexpr std::uint64_t kMostSkipped = 4;  // version numbers without a visible version
constexpr auto kLongest = std::chrono::hours(24);

// The directory for a run that the leader makes up. A job that is killed may get only a second of
// notice, too short for some waits; so at a signal the files are removed at once. Mapped files stay
// readable, and no further version is started.
class RunFiles {
 public:
  [[nodiscard]] Result<std::string> create() {
    DRIFTLESS_ASSIGN_OR_RETURN(TemporaryDirectory made, TemporaryDirectory::create());
    const std::string& path = directory_.emplace(std::move(made)).path();
    watcher_ = std::jthread([path](const std::stop_token& over) {
      while (!over.stop_requested() && StopSignals::received() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      std::error_code ignored;
      if (!over.stop_requested()) std::filesystem::remove_all(path, ignored);
    });
    return path + "/run";
  }
  void remove() {
    watcher_ = {};
    directory_.reset();
  }

 private:
  std::optional<TemporaryDirectory> directory_;
  std::jthread watcher_;  // joined before the directory is removed
};

// One rank of the trainer. The leader decides, and the other ranks follow.
class Trainer {
 public:
  Trainer(const Common& common, const TrainerArguments& arguments, Config config,
          JobProcess& process)
      : common_(common),
        arguments_(arguments),
        config_(std::move(config)),
        process_(process),
        progress_(common.json, expected(), arguments.rollouts.value_or(0)) {}

  // Returns the exit code; a failure ends the job.
  [[nodiscard]] Result<int> run() {
    DRIFTLESS_ASSIGN_OR_RETURN(group_, process_.group());
    DRIFTLESS_RETURN_IF_ERROR(prepare_steps());
    DRIFTLESS_RETURN_IF_ERROR(open());
    if (leads()) absent_ = wait_for_rollouts();
    // Missing rollouts of this job have failed and end the job. Other rollouts that do not come are
    // only part of the run's result.
    if (process_.together() || absent_.code() != StatusCode::kDeadlineExceeded) {
      DRIFTLESS_RETURN_IF_ERROR(absent_);
    }
    DRIFTLESS_RETURN_IF_ERROR(publish_all());
    return close();
  }
  void remove_files() { temporary_.remove(); }

 private:
  [[nodiscard]] bool leads() const { return process_.rank() == 0; }
  [[nodiscard]] std::vector<std::string> expected() const {
    std::vector<std::string> ids;
    if (!process_.together()) return ids;
    for (unsigned rollout = 0; rollout < process_.rollouts(); ++rollout) {
      ids.push_back(receiver_id(config_, process_, rollout));
    }
    return ids;
  }

  [[nodiscard]] Status synthesize_run(const std::string& directory) {
    SynthOptions synth = arguments_.synth;
    synth.out = directory;
    synth.steps = static_cast<unsigned>(
        std::min<std::uint64_t>(kMostSynthesized, arguments_.steps.value_or(kDefaultSteps)));
    synth.threads = config_.publisher.threads;
    return synthesize(posix_file_system(), synth).status();
  }

  // The leader makes up a run if there is none to replay; then all ranks learn its path.
  [[nodiscard]] Status prepare_steps() {
    std::string directory = arguments_.replay;
    if (directory.empty()) {
      if (leads()) {
        DRIFTLESS_ASSIGN_OR_RETURN(directory, temporary_.create());
        DRIFTLESS_RETURN_IF_ERROR(synthesize_run(directory));
      }
      group_->begin_epoch(0);
      DRIFTLESS_ASSIGN_OR_RETURN(directory,
                                 group_->broadcast(directory, Deadline::after(kLongest)));
    }
    const std::uint64_t most = arguments_.steps.value_or(kDefaultSteps);
    DRIFTLESS_ASSIGN_OR_RETURN(RunSteps steps, arguments_.replay.empty()
                                                   ? RunSteps::to_and_fro(directory, most)
                                                   : RunSteps::replay(directory, arguments_.steps));
    DRIFTLESS_ASSIGN_OR_RETURN(
        weights_, StepWeights::open(std::move(steps), arguments_.base, config_.quantize,
                                    common_.thread_count()));
    return {};
  }

  [[nodiscard]] Status open() {
    if (!weights_->quantize_rule().empty()) {
      config_.publisher.quantize_rule = weights_->quantize_rule();
    }
    if (leads()) {
      for (const std::string& note : weights_->left_out()) print(note);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint base, weights_->open_step(0));
    CheckpointSource source(base, process_.rank(), process_.trainers());
    // It may take long to make up a run, so the wait for the others starts only here.
    DRIFTLESS_ASSIGN_OR_RETURN(config_.publisher.device, open_device(config_));
    if (leads() && !arguments_.replay.empty()) DRIFTLESS_RETURN_IF_ERROR(look_first());
    DRIFTLESS_ASSIGN_OR_RETURN(session_, PublisherSession::open(config_, process_, source));
    if (!leads()) return {};
    const EndOfRun first = session_->newest();
    progress_.start(first);
    for (const std::string& note : session_->publisher().notes()) print(note);
    if (!session_->publisher().resumed()) return {};
    print(concat("resumed at version ", first.version));
    return find_step(first);
  }

  // Refuses a road that holds another run. This must happen before a publisher is opened, because
  // opening takes the road over and withdraws the end-of-run message. If the road's content cannot
  // be read, the publisher decides.
  [[nodiscard]] Status look_first() {
    const Deadline now = Deadline::after(std::chrono::milliseconds(0));
    const auto history = process_.history();
    if (!history.ok() || *history == nullptr) return {};
    const Result<std::string> announcement = (*history)->run_info(now);
    if (!announcement.ok()) return {};
    const Result<RunInfo> run = parse_run_info(*announcement, "the announcement on the road");
    const Result<std::vector<PublicationId>> there =
        (*history)->list(Deadline::after(config_.connect_deadline));
    if (!run.ok() || !there.ok() || there->empty()) return {};
    const PublicationId newest = *std::ranges::max_element(*there, {}, &PublicationId::version);
    const Result<std::string> text =
        (*history)->fetch_manifest(newest, Deadline::after(config_.connect_deadline));
    if (!text.ok()) return {};
    const Result<Manifest> manifest = parse_manifest(*text, to_string(newest));
    if (!manifest.ok() || run->layout.signature() != weights_->layout().signature()) return {};
    return find_step({run->run, newest.version, manifest->digest});
  }

  // Finds the step whose weights are the version on the road, to continue from there. If it is not
  // one of these steps, the road holds another run. The step's number may be somewhat lower than
  // the version's, because a killed trainer may have used up version numbers.
  [[nodiscard]] Status find_step(const EndOfRun& there) {
    if (there.version == 0) return {};
    const std::uint64_t newest = std::min(there.version, weights_->last());
    for (at_ = newest;; --at_) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, weights_->digest(at_));
      if (digest == there.digest) return {};
      if (at_ == 0 || newest - at_ == kMostSkipped) break;
    }
    return error(
        StatusCode::kAlreadyExists, "the road holds version ", there.version, " of run ",
        to_hex(there.run), " with digest ", to_hex(there.digest), ", which ",
        weights_->path(newest), " does not have",
        !weights_->quantize_rule().empty() ? " once quantized by this quantize.rule" : "",
        ": another run",
        "; use another road.shared_fs.dir or road.object_store.url, or remove the old run");
  }

  void print(const std::string& text) const {
    if (!common_.json) process_log().event(text);
  }

  [[nodiscard]] Status listen() {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverReport> reports, session_->listen());
    progress_.update(reports, session_->road().left());
    return {};
  }

  // Waits for the expected rollouts: a later one might find that the ring no longer has the first
  // version.
  [[nodiscard]] Status wait_for_rollouts() {
    const Deadline deadline = Deadline::after(config_.connect_deadline);
    Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(50));
    Waiting waiting;
    for (;;) {
      DRIFTLESS_RETURN_IF_ERROR(listen());
      if (progress_.present() || StopSignals::received() != 0) return {};
      if (!waiting.sleep(backoff, deadline, [this] { return progress_.missing(); })) {
        return error(StatusCode::kDeadlineExceeded, "deadlines.connect (",
                     config_.connect_deadline.count(), " ms): ", progress_.missing_for_good());
      }
    }
  }

  // The longest time for which the other ranks may wait while the leader works between two
  // versions.
  [[nodiscard]] std::chrono::milliseconds longest_pause() const {
    return std::chrono::milliseconds(arguments_.interval_ms) + NotifiedEngines::longest(config_);
  }

  // The step that all ranks publish next; nothing: the run is over. The leader decides, after every
  // rank has reported whether it was asked to stop.
  [[nodiscard]] Result<std::optional<std::uint64_t>> next_step() {
    group_->begin_epoch(++round_);
    const Deadline deadline =
        Deadline::after(config_.publisher.deadline + config_.connect_deadline + longest_pause());
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::vector<std::string> asked,
        group_->gather(StopSignals::received() != 0 ? "stop" : "go", deadline));
    std::string word = "end";
    if (leads()) {
      stopped_ = std::find(asked.begin(), asked.end(), "stop") != asked.end();
      const std::uint64_t next = std::min(session_->newest().version + 1, weights_->last());
      if (!stopped_ && absent_.ok() && at_ < next) word = std::to_string(next);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(word, group_->broadcast(word, deadline));
    if (word == "end") return std::optional<std::uint64_t>();
    std::uint64_t step = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), step);
    if (code != std::errc() || end != word.data() + word.size() || step > weights_->last()) {
      return error(StatusCode::kInternal, "the leader asked for step '", word, "'");
    }
    return std::optional<std::uint64_t>(step);
  }

  [[nodiscard]] Status publish_all() {
    int failures = 0;
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> step, next_step());
      if (!step) return {};
      Result<PublishReport> report = publish(*step);
      if (!report.ok()) {
        if (++failures == kMostFailures) return report.status();
        if (leads()) print(concat("version ", *step, " again: ", report.status().to_string()));
        continue;
      }
      failures = 0;
      if (!leads()) continue;
      at_ = *step;
      progress_.published(*report, session_->fallback());
      // A failing engine is reported and counted; the run goes on.
      for (const Status& failure :
           session_->notify_engines(report->version, arguments_.rollouts.value_or(0))) {
        log(failure);
      }
      DRIFTLESS_RETURN_IF_ERROR(pause());
    }
  }

  [[nodiscard]] Result<PublishReport> publish(std::uint64_t step) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint weights, weights_->open_step(step));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::unique_ptr<WeightSource> source,
        weights_->source_of(step, weights, process_.rank(), process_.trainers()));
    DRIFTLESS_RETURN_IF_ERROR(weights_->bring_in(weights, *source));
    return session_->publish(*source);
  }

  // A real trainer would compute here.
  [[nodiscard]] Status pause() {
    const Deadline until = Deadline::after(std::chrono::milliseconds(arguments_.interval_ms));
    do {
      DRIFTLESS_RETURN_IF_ERROR(listen());
      progress_.print(false);
      Backoff(std::chrono::milliseconds(20), std::chrono::milliseconds(20)).sleep(until);
    } while (!until.expired() && StopSignals::received() == 0);
    return {};
  }

  static void log(const Status& status) {
    if (!status.ok()) process_log().warning(status.to_string());
  }

  // A rollout asks for an anchor, and no further version will bring one: all ranks make it now.
  [[nodiscard]] Status help_stranded() {
    if (anchored_) return {};  // the anchor exists; the rollout will find it
    anchored_ = true;
    DRIFTLESS_RETURN_IF_ERROR(lead_word("anchor").status());
    return make_anchor();
  }

  // An anchor that was made with the version will do, too.
  [[nodiscard]] Status make_anchor() {
    const Status made = session_->publisher().publish_anchor();
    if (made.code() != StatusCode::kAlreadyExists) log(made);
    return {};
  }

  // Waits as long as rollouts make progress.
  [[nodiscard]] Status wait_for_last() {
    std::uint64_t progress = progress_.progress();
    Deadline deadline = Deadline::after(stopped_ ? kStopWait : config_.connect_deadline);
    Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(50));
    Waiting waiting;
    for (;;) {
      DRIFTLESS_RETURN_IF_ERROR(listen());
      progress_.print(false);
      if (progress_.complete()) break;
      waiting.look([this] { return progress_.missing(); });
      if (progress_.anchor_wanted()) DRIFTLESS_RETURN_IF_ERROR(help_stranded());
      if (progress_.progress() != progress) {
        progress = progress_.progress();
        waiting.restart();
        deadline = Deadline::after(stopped_ ? kStopWait : config_.connect_deadline);
      }
      if (!backoff.sleep(deadline)) break;
    }
    progress_.print(true);
    return {};
  }

  [[nodiscard]] Result<int> close() {
    Status missed = absent_;  // the missing rollouts found by the leader
    if (leads() && absent_.ok()) {
      DRIFTLESS_RETURN_IF_ERROR(wait_for_last());
      DRIFTLESS_RETURN_IF_ERROR(session_->declare_end());
      missed = finish();
    }
    // The rollouts must release the road before its windows are freed; but no wait is unlimited.
    const auto wait = stopped_ ? kStopWait : config_.connect_deadline;
    DRIFTLESS_RETURN_IF_ERROR(end_group());
    session_.reset();
    group_.reset();
    const Status closed = process_.close(Deadline::after(wait));
    if (!closed.ok()) return missed.ok() ? closed : closed.with_context(missed.message());
    if (stopped_) return 128 + std::max(1, StopSignals::received());
    if (!missed.ok()) report_line(missed);
    return missed.ok() ? int{kExitOk} : int{kExitDifferent};
  }

  // Prints the last line, and the engines or rollouts that miss something.
  [[nodiscard]] Status finish() {
    const NotifiedEngines* const engines = session_->engines();
    progress_.print_summary(engines == nullptr ? std::span<const EngineTally>()
                                               : engines->tallies());
    Status missed = engines == nullptr ? Status() : engines->outcome();
    if (progress_.complete()) return missed;
    return error(StatusCode::kMismatch, "not every rollout ended at the trainer's last version: ",
                 progress_.missing_for_good(), missed.ok() ? "" : "; ", missed.message());
  }

  // The other ranks learn from the leader that the rollouts are done. Until then their windows must
  // stay. All ranks also leave the HDF5 sink together.
  [[nodiscard]] Status end_group() {
    if (leads()) return lead_word("end").status();
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string word, lead_word(""));
      if (word == "end") return {};
      DRIFTLESS_RETURN_IF_ERROR(make_anchor());
    }
  }
  [[nodiscard]] Result<std::string> lead_word(std::string_view word) {
    group_->begin_epoch(++round_);
    return group_->broadcast(word, Deadline::after(kLongest));
  }

  const Common& common_;
  const TrainerArguments& arguments_;
  Config config_;
  JobProcess& process_;
  JobProgress progress_;
  RunFiles temporary_;
  std::optional<StepWeights> weights_;
  std::unique_ptr<Group> group_;  // for this command
  std::unique_ptr<PublisherSession> session_;
  std::uint64_t round_ = 0;
  std::uint64_t at_ = 0;  // the step of the last version
  Status absent_;         // failure that names rollouts that did not come
  bool stopped_ = false;
  bool anchored_ = false;  // the last version has its anchor
};

}  // namespace

Result<int> run_trainer(const Common& common, const TrainerArguments& arguments) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments.job));
  std::optional<Trainer> trainer;
  const auto clean_up = [&] {
    if (trainer) trainer->remove_files();
  };
  return run_in_job(common, config, JobRole::kTrainer, "trainer", clean_up,
                    [&](const auto& process) {
                      return trainer.emplace(common, arguments, config, *process).run();
                    });
}

}  // namespace driftless::cli
