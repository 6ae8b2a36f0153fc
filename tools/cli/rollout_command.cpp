#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/stopwatch.h"
#include "plugin/job/config_values.h"
#include "plugin/job/metrics.h"
#include "plugin/receive/receiver.h"
#include "tools/cli/commands.h"
#include "tools/cli/job.h"
#include "tools/cli/job_board.h"
#include "tools/cli/rollout_weights.h"

namespace driftless::cli {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);  // for a new version; then for the end
constexpr auto kSignOfLife = std::chrono::seconds(1);
constexpr auto kStopWait = std::chrono::seconds(10);

// The road, with the times of the last commit in every report.
class TimedRoad final : public ReceiveRoad {
 public:
  explicit TimedRoad(ReceiveRoad& road) : road_(road) {}
  void set_times(const Digest& digest, double stage_ms, double commit_ms) {
    digest_ = to_hex(digest);
    proof_ = proof_with_times(digest_, stage_ms, commit_ms);
  }

  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline) override {
    return road_.run_info(deadline);
  }
  [[nodiscard]] Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return road_.list(deadline);
  }
  [[nodiscard]] Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return road_.wait_beyond(version, deadline);
  }
  [[nodiscard]] Result<std::string> fetch_manifest(const PublicationId& id,
                                                   const Deadline& deadline) override {
    return road_.fetch_manifest(id, deadline);
  }
  [[nodiscard]] Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                              const Deadline& deadline) override {
    return road_.fetch_part(id, part, deadline);
  }
  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline& deadline) override {
    ReceiverReport timed = report;
    if (!digest_.empty() && report.proof == digest_) timed.proof = proof_;
    return road_.report(timed, deadline);
  }
  [[nodiscard]] Status leave(const Deadline& deadline) override { return road_.leave(deadline); }

 private:
  ReceiveRoad& road_;
  std::string digest_, proof_;
};

class Rollout {
 public:
  Rollout(const Common& common, const RolloutArguments& arguments, Config config,
          JobProcess& process)
      : common_(common),
        arguments_(arguments),
        config_(std::move(config)),
        process_(process),
        id_(receiver_id(config_, process_, process_.rank())) {}

  [[nodiscard]] Result<int> run() {
    DRIFTLESS_RETURN_IF_ERROR(open());
    DRIFTLESS_RETURN_IF_ERROR(follow());
    DRIFTLESS_RETURN_IF_ERROR(close());
    DRIFTLESS_RETURN_IF_ERROR(check_end());
    if (!arguments_.save.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(
          save_weights(*weights_, arguments_.save, process_.rank(), arguments_.base));
    }
    print_end();
    const int signal = StopSignals::received();
    return !end_ && !reached() && signal != 0 ? 128 + signal : int{kExitOk};
  }

 private:
  [[nodiscard]] Status open() {
    const Deadline deadline = Deadline::after(config_.connect_deadline);
    // Before the meeting of all processes: a wrong base is told at once.
    DRIFTLESS_ASSIGN_OR_RETURN(weights_, open_weights(config_, process_.rank(), arguments_.base));
    DRIFTLESS_ASSIGN_OR_RETURN(road_, process_.receiver(deadline_of_start()));
    timed_.emplace(*road_);
    ReceiverOptions options = config_.receiver;
    options.id = id_;
    DRIFTLESS_ASSIGN_OR_RETURN(receiver_,
                               Receiver::open(options, *timed_, weights_->target(), deadline));
    if (config_.metrics_file.empty()) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(
        MetricsWriter metrics,
        MetricsWriter::open(filled_in(config_.metrics_file, "rollout", process_.rank())));
    metrics_.emplace(std::move(metrics));
    return {};
  }

  // Trainers that mpirun started beside us may first make up a run; if they fail, the job ends.
  [[nodiscard]] Deadline deadline_of_start() const {
    return process_.together() ? Deadline::after(std::chrono::hours(24))
                               : Deadline::after(config_.connect_deadline);
  }

  [[nodiscard]] bool reached() const {
    const TargetState state = receiver_state();
    return arguments_.target_version && state.valid &&
           state.id.version >= *arguments_.target_version;
  }
  [[nodiscard]] TargetState receiver_state() const { return weights_->target().state(); }

  // The trainer's last word. One that cannot be read yet is looked at again for a while.
  [[nodiscard]] Status listen_for_end() {
    Result<std::optional<EndOfRun>> end = look_for_end(process_, config_, receiver_->run());
    if (end.ok()) {
      end_ = *end;
      unreadable_end_.reset();
      return {};
    }
    if (end.status().code() != StatusCode::kCorrupt) return end.status();
    if (!unreadable_end_) unreadable_end_ = Deadline::after(config_.receiver.fetch_deadline);
    return unreadable_end_->expired() ? end.status() : Status();
  }

  // Until the end of the run, --target-version, --timeout or a signal.
  [[nodiscard]] Status follow() {
    std::optional<Deadline> timeout;
    if (arguments_.timeout) timeout = Deadline::after(*arguments_.timeout);
    std::optional<Deadline> after_end;
    Deadline alive = Deadline::after(kSignOfLife);
    while (StopSignals::received() == 0 && !reached()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool news, look());
      if (news) {
        DRIFTLESS_RETURN_IF_ERROR(commit());
        after_end.reset();
      }
      if (news || alive.expired()) {
        DRIFTLESS_RETURN_IF_ERROR(report());
        alive = Deadline::after(kSignOfLife);
      }
      if (!end_) DRIFTLESS_RETURN_IF_ERROR(listen_for_end());
      if (end_ && receiver_state().valid && receiver_state().id.version >= end_->version) return {};
      if (end_ && !after_end) after_end = Deadline::after(config_.receiver.fetch_deadline);
      if (after_end && after_end->expired()) return {};  // check_end() says what is missing
      if (timeout && timeout->expired()) {
        return error(StatusCode::kDeadlineExceeded, "--timeout: still at version ",
                     receiver_state().id.version);
      }
    }
    return {};
  }

  // Versions may appear out of order, so that a step seems to be missing; the trainer's next
  // version may bring the anchor that the receiver now asks for; and bytes that did not fit are
  // fetched again.
  [[nodiscard]] Result<bool> look() {
    Result<bool> news = receiver_->stage(Deadline::after(kLook));
    const StatusCode code = news.status().code();
    const bool helped_by_anchor = code == StatusCode::kWrongBase || code == StatusCode::kMismatch;
    if (!helped_by_anchor) {
      stranded_.reset();
      return news;
    }
    trouble_ = news.status();
    if (!stranded_) {
      stranded_ = Deadline::after(config_.receiver.fetch_deadline);
      said_stranded_ = false;
    }
    // Most gaps close by themselves at once.
    if (!said_stranded_ && stranded_->remaining() < config_.receiver.fetch_deadline - kSignOfLife) {
      tell(news.status().with_context("waiting for an anchor, or for what is missing"));
      said_stranded_ = true;
    }
    if (!Backoff(kLook, kLook).sleep(*stranded_)) return news;
    return false;
  }

  // Waiting for versions ends well where the trainer is gone; only a report needs it. One that is
  // refused (a directory that may only be read) stops nothing.
  [[nodiscard]] Status report() {
    const Status told = receiver_->report();
    if (told.code() != StatusCode::kDeadlineExceeded) {
      unheard_.reset();
      tell(told);
      return {};
    }
    if (!unheard_) unheard_ = Deadline::after(config_.connect_deadline);
    if (!unheard_->expired()) return {};
    return told.with_context(concat("no way to the trainer for deadlines.connect (",
                                    config_.connect_deadline.count(), " ms), at version ",
                                    receiver_state().id.version));
  }

  [[nodiscard]] Status commit() {
    Stopwatch watch;
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport report, receiver_->commit());
    const double commit_ms = watch.lap_ms();
    timed_->set_times(report.digest, report.fetch_ms + report.stage_ms, commit_ms);
    if (metrics_) tell(metrics_->write(metrics_of(report, process_.rank())));
    commits_ += 1;
    versions_ += report.versions;
    anchors_ += report.anchor ? 1 : 0;
    for (const std::string& note : report.notes) tell(Status(StatusCode::kIo, note));
    if (!arguments_.verbose) return {};
    if (common_.json) {
      std::cout << metrics_json(metrics_of(report, process_.rank())) << "\n" << std::flush;
      return {};
    }
    std::cout << concat(id_, ": version ", report.version, report.anchor ? " (anchor)" : "",
                        ", stage ", fixed(report.fetch_ms + report.stage_ms, 1), " ms, commit ",
                        fixed(commit_ms, 1), " ms\n")
              << std::flush;
    return {};
  }

  void tell(const Status& status) const {
    if (!status.ok()) std::cerr << concat("driftless: ", id_, ": ", status.to_string(), "\n");
  }

  [[nodiscard]] Status close() {
    // One that only went to --target-version stays known: it will come back, and whoever counts the
    // rollouts must still find it.
    if (!reached() || end_) tell(receiver_->leave());
    receiver_.reset();
    timed_.reset();
    road_.reset();
    const bool stopped = StopSignals::received() != 0 && !end_;
    return process_.close(Deadline::after(stopped ? kStopWait : config_.connect_deadline));
  }

  [[nodiscard]] Status check_end() const {
    if (!end_) return {};
    const TargetState state = receiver_state();
    if (!state.valid || state.id.version != end_->version) {
      return error(StatusCode::kIncomplete, "the run ended at version ", end_->version,
                   ", and this rollout at ", state.id.version, trouble_.ok() ? "" : "; ",
                   trouble_.message());
    }
    if (state.digest == end_->digest) return {};
    return error(StatusCode::kMismatch, "version ", end_->version, " has digest ",
                 to_hex(state.digest), " here and ", to_hex(end_->digest), " at the trainer");
  }

  void print_end() const {
    const TargetState state = receiver_state();
    if (common_.json) {
      nlohmann::ordered_json json;
      json["event"] = "rollout";
      json["id"] = id_;
      json["rank"] = process_.rank();
      json["version"] = state.id.version;
      json["digest"] = to_hex(state.digest);
      json["commits"] = commits_;
      json["versions"] = versions_;
      json["anchors"] = anchors_;
      print_json(json);
      std::cout.flush();
    } else if (arguments_.verbose || !process_.together()) {
      std::cout << concat(id_, ": ended at version ", state.id.version, " after ", commits_,
                          " commits, digest ", to_hex(state.digest), "\n")
                << std::flush;
    }
  }

  const Common& common_;
  const RolloutArguments& arguments_;
  Config config_;
  JobProcess& process_;
  std::string id_;
  std::unique_ptr<RolloutWeights> weights_;
  std::unique_ptr<ReceiveRoad> road_;
  std::optional<TimedRoad> timed_;
  std::unique_ptr<Receiver> receiver_;
  std::optional<MetricsWriter> metrics_;
  std::optional<EndOfRun> end_;
  std::optional<Deadline> stranded_;        // until when that is borne
  std::optional<Deadline> unreadable_end_;  // and this
  bool said_stranded_ = false;
  Status trouble_;                   // why it was stranded last
  std::optional<Deadline> unheard_;  // since the first report that did not come through
  std::uint64_t commits_ = 0, versions_ = 0, anchors_ = 0;
};

}  // namespace

int run_rollout(const Common& common, RolloutArguments arguments) {
  if (!arguments.timeout_text.empty()) {
    const Result<std::chrono::milliseconds> timeout = parse_duration(arguments.timeout_text);
    if (!timeout.ok()) return report(common, timeout.status().with_context("--timeout"));
    arguments.timeout = *timeout;
  }
  Result<Config> config = job_config(common, arguments.job);
  if (!config.ok()) return report(common, config.status());
  const StopSignals signals;
  const std::function<void()> nothing;
  const Result<std::unique_ptr<JobProcess>> process = JobProcess::join(
      *config, JobRole::kRollout, launched_by_mpi(), end_when_late(common, nothing));
  if (!process.ok()) return report(common, process.status());
  Rollout rollout(common, arguments, std::move(*config), **process);
  const Result<int> done = rollout.run();
  if (done.ok()) return *done;
  // Nothing that waits for others any more: they may be gone.
  const int code =
      report(common, done.status().with_context(concat("rollout ", (*process)->rank())));
  std::cout.flush();
  (*process)->abandon(code);
  return code;  // not reached
}

}  // namespace driftless::cli
