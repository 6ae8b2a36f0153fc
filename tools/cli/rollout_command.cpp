// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>

#include "core/line_log.h"
#include "core/setting_values.h"
#include "plugin/job/joined_road.h"
#include "plugin/job/metrics.h"
#include "tools/cli/bounded_road.h"
#include "tools/cli/commands.h"
#include "tools/cli/job.h"
#include "tools/cli/rollout_weights.h"

namespace driftless::cli {
namespace {

constexpr auto kLookForVersion =
    std::chrono::milliseconds(200);  // the wait for a version before each look for the end

class Rollout {
 public:
  Rollout(const Common& common, const RolloutArguments& arguments, const Config& config,
          std::shared_ptr<JobProcess> process)
      : common_(common), arguments_(arguments), config_(config), process_(std::move(process)) {}

  [[nodiscard]] Result<int> run() {
    if (arguments_.timeout) timeout_ = Deadline::after(*arguments_.timeout);
    if (const Status opened = open(); !opened.ok()) return stopped_or(opened);
    DRIFTLESS_RETURN_IF_ERROR(follow());
    DRIFTLESS_RETURN_IF_ERROR(close());
    DRIFTLESS_RETURN_IF_ERROR(check_end());
    if (!arguments_.save.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> left_out,
                                 save_weights(weights_, arguments_.save, process_->rank()));
      for (const std::string& file : left_out) note(concat("--save: left out: ", file));
    }
    print_end();
    const int signal = StopSignals::received();
    return !end_ && !reached() && signal != 0 ? 128 + signal : int{kExitOk};
  }

 private:
  // The result of a failed wait for the run: 128 plus the signal, if a signal ended the wait;
  // otherwise the failure, which names --timeout if that is over.
  [[nodiscard]] Result<int> stopped_or(const Status& failure) const {
    if (const int signal = StopSignals::received(); signal != 0) return 128 + signal;
    return timed_out() ? failure.with_context("--timeout") : failure;
  }
  // The deadline for the other side to appear: not beyond --timeout, and ended by a signal.
  [[nodiscard]] Deadline within(std::chrono::milliseconds wait) const {
    const Deadline until = timeout_ ? timeout_->sooner(wait) : Deadline::after(wait);
    return until.unless([] { return StopSignals::received() != 0; });
  }

  [[nodiscard]] Status open() {
    const Deadline deadline = within(config_.connect_deadline);
    // Opened before all processes meet, so that a wrong base is reported at once.
    DRIFTLESS_ASSIGN_OR_RETURN(weights_, open_weights(config_, process_->rank(), arguments_.base));
    // Trainers that mpirun started with us may first make up a run; if they fail, the job ends.
    DRIFTLESS_ASSIGN_OR_RETURN(JoinedRoad joined,
                               join_road(config_, process_, std::nullopt,
                                         within(process_->together() ? std::chrono::hours(24)
                                                                     : config_.connect_deadline)));
    id_ = joined.options.id;
    joined.options.warn = [](const Status& why) { log(why); };
    road_ = std::make_unique<BoundedRoad>(*joined.road, timeout_,
                                          [] { return StopSignals::received() != 0; });
    DRIFTLESS_ASSIGN_OR_RETURN(receiver_,
                               Receiver::open(joined.options, *road_, *weights_.target, deadline));
    report_left_alone();
    return {};
  }

  void report_left_alone() const {
    const std::vector<std::string> names = weights_.target->left_alone();
    if (names.empty()) return;
    std::string text = concat(counted(names.size(), "tensor"),
                              " of the base that the run does not publish: left alone: ");
    for (std::size_t i = 0; i < names.size() && i < 8; ++i) text += concat(i ? ", " : "", names[i]);
    if (names.size() > 8) text += concat(" and ", names.size() - 8, " more");
    note(text);
  }
  static void note(const std::string& text) { process_log().warning(concat("note: ", text)); }

  [[nodiscard]] bool at_least(std::uint64_t version) const {
    const TargetState state = weights_.target->state();
    return state.valid && state.id.version >= version;
  }
  [[nodiscard]] bool reached() const {
    return arguments_.target_version && at_least(*arguments_.target_version);
  }

  // Follows until the end of the run, --target-version, --timeout or a signal.
  [[nodiscard]] Status follow() {
    while (StopSignals::received() == 0 && !reached()) {
      const Result<bool> staged = receiver_->stage_patiently(Deadline::after(kLookForVersion));
      if (StopSignals::received() != 0) return {};
      if (!staged.ok()) return timed_out() ? at_timeout() : staged.status();
      if (*staged) {
        DRIFTLESS_RETURN_IF_ERROR(commit());
        log(receiver_->report());  // reports the times of the commit
        after_end_.reset();
      }
      DRIFTLESS_RETURN_IF_ERROR(receiver_->check_contact());
      if (!end_) {
        DRIFTLESS_ASSIGN_OR_RETURN(end_, receiver_->listen_for_end());
      }
      if (end_ && at_least(end_->version)) return {};
      if (end_ && !after_end_) after_end_ = Deadline::after(config_.receiver.fetch_deadline);
      if (after_end_ && after_end_->expired()) return {};  // check_end() reports what is missing
      if (timed_out()) return at_timeout();
    }
    return {};
  }
  [[nodiscard]] bool timed_out() const { return timeout_ && timeout_->expired(); }
  [[nodiscard]] Status at_timeout() const {
    return error(StatusCode::kDeadlineExceeded, "--timeout: still at version ",
                 weights_.target->state().id.version);
  }

  [[nodiscard]] Status commit() {
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport report, receiver_->commit());
    for (const std::string& note : report.notes) log(Status(StatusCode::kIo, note));
    if (!arguments_.verbose) return {};
    if (common_.json) {
      print_json(to_json(record_of(report, process_->rank())));
      return {};
    }
    const double commit_ms = report.pause_ms + report.apply_ms + report.resume_ms;
    process_log().event(concat("version ", report.version, report.anchor ? " (anchor)" : "",
                               ", fetch_ms ", fixed(report.fetch_ms, 1), ", stage_ms ",
                               fixed(report.stage_ms, 1), ", commit_ms ", fixed(commit_ms, 1)));
    return {};
  }

  // check_contact() handles a trainer that does not answer.
  static void log(const Status& status) {
    if (status.ok() || status.code() == StatusCode::kDeadlineExceeded) return;
    process_log().warning(status.to_string());
  }

  [[nodiscard]] Status close() {
    // A rollout that stopped at --target-version does not sign off: it will come back, and the
    // trainer must still count it.
    if (!reached() || end_) log(receiver_->leave());
    const bool stopped = StopSignals::received() != 0 && !end_;
    counts_ = receiver_->counts();
    trouble_ = receiver_->trouble();
    receiver_.reset();
    return process_->close(Deadline::after(stopped ? kStopWait : config_.connect_deadline));
  }

  [[nodiscard]] Status check_end() const {
    if (!end_) return {};
    const TargetState state = weights_.target->state();
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
    const TargetState state = weights_.target->state();
    if (common_.json) {
      nlohmann::ordered_json json =
          to_json(EndRecord{record_origin("rollout", process_->rank()), state.id.run, "rollout",
                            id_, state.id.version, to_hex(state.digest)});
      json["commits"] = counts_.commits;
      json["versions"] = counts_.versions;
      json["anchors"] = counts_.anchors;
      print_json(json);
    } else if (arguments_.verbose || !process_->together()) {
      process_log().event(concat("ended at version ", state.id.version, ", commits ",
                                 counts_.commits, ", digest ", to_hex(state.digest)));
    }
  }

  const Common& common_;
  const RolloutArguments& arguments_;
  const Config& config_;
  std::shared_ptr<JobProcess> process_;
  RolloutWeights weights_;
  std::string id_;
  std::unique_ptr<BoundedRoad> road_;  // its road is kept alive by the receiver's options
  std::unique_ptr<Receiver> receiver_;
  ReceiverCounts counts_;  // at the end
  Status trouble_;
  std::optional<EndOfRun> end_;
  std::optional<Deadline> timeout_;    // --timeout
  std::optional<Deadline> after_end_;  // time limit for what is missing
};

}  // namespace

Result<int> run_rollout(const Common& common, RolloutArguments arguments) {
  if (!arguments.timeout_text.empty()) {
    const Result<std::chrono::milliseconds> timeout = parse_duration(arguments.timeout_text);
    if (!timeout.ok()) return timeout.status().with_context("--timeout");
    arguments.timeout = *timeout;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config, job_config(common, arguments.job));
  std::optional<Rollout> rollout;
  return run_in_job(common, config, JobRole::kRollout, "rollout", {}, [&](const auto& process) {
    return rollout.emplace(common, arguments, config, process).run();
  });
}

}  // namespace driftless::cli
