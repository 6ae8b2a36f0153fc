// An engine with our receiver in its workers, brought from one version to the next on all ranks, or
// left where it was on all of them.
#include <algorithm>

#include "core/deadline.h"
#include "core/stopwatch.h"
#include "plugin/engines/engine_session.h"
#include "plugin/engines/worker_engine.h"

namespace driftless {
namespace {

using std::chrono_literals::operator""ms;
constexpr int kStageAttempts = 5;
constexpr auto kStageGrace = std::chrono::seconds(30);  // the ranks' own deadline comes first

class WorkerSession final : public EngineSession {
 public:
  WorkerSession(std::unique_ptr<WorkerEngine> engine, std::string source,
                std::chrono::milliseconds stage)
      : engine_(std::move(engine)), source_(std::move(source)), stage_(stage) {}

  Result<std::uint64_t> update(std::uint64_t goal, EngineTimes& times) override {
    Stopwatch watch;
    const Result<std::uint64_t> found = where();
    if (torn_) return found;
    const Status left = engine_->settle();  // by whoever drove it before
    if (!found.ok()) return found;
    DRIFTLESS_RETURN_IF_ERROR(left);
    const std::uint64_t before = *found;
    if (before >= goal) {
      DRIFTLESS_RETURN_IF_ERROR(engine_->confirm(before));
      return before;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t version, stage(goal));
    times.stage_ms = watch.lap_ms();
    DRIFTLESS_RETURN_IF_ERROR(engine_->pause());
    times.pause_ms = watch.lap_ms();
    const Result<std::uint64_t> reached = commit(before, version);
    times.apply_ms = watch.lap_ms();
    if (torn_) return reached;  // left paused, as it says
    const Status settled = engine_->settle();
    times.resume_ms = watch.lap_ms();
    if (!reached.ok()) return reached;
    DRIFTLESS_RETURN_IF_ERROR(settled);
    DRIFTLESS_RETURN_IF_ERROR(engine_->confirm(*reached));
    return reached;
  }

  Status close() override { return torn_ ? Status() : engine_->settle(); }

 private:
  // The version that all ranks hold; the workers follow the road from now on.
  [[nodiscard]] Result<std::uint64_t> where() {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<RankReply> replies,
                               engine_->ask("status", Json::object(), false));
    const bool closed = std::ranges::any_of(
        replies, [](const RankReply& reply) { return reply.state == "closed"; });
    if (closed) {
      DRIFTLESS_ASSIGN_OR_RETURN(replies, engine_->ask("open", {{"source", source_}}, false));
      DRIFTLESS_RETURN_IF_ERROR(check_ranks(replies, "the engine's workers do not follow the run"));
    }
    Result<std::uint64_t> version = one_version(replies);
    if (!version.ok()) version = bring_together(replies);
    torn_ = !version.ok();
    return version;
  }

  // Ranks at two versions, as a driver that was killed in the middle leaves them: all back to the
  // older one.
  [[nodiscard]] Result<std::uint64_t> bring_together(const std::vector<RankReply>& replies) {
    const std::uint64_t oldest = std::ranges::min(replies, {}, &RankReply::version).version;
    DRIFTLESS_RETURN_IF_ERROR(engine_->pause());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankReply> now,
                               engine_->ask("rollback", {{"version", oldest}}, true));
    return one_version(now);
  }

  [[nodiscard]] Status start_staging() {
    const double seconds = std::chrono::duration<double>(stage_).count();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankReply> replies,
                               engine_->ask("stage", {{"timeout_s", seconds}}, false));
    return check_ranks(replies, "staging did not begin");
  }

  // All ranks have the same version ready, at least `goal`.
  [[nodiscard]] Result<std::uint64_t> stage(std::uint64_t goal) {
    const Deadline deadline = Deadline::after(stage_ + kStageGrace);
    std::vector<RankReply> replies;
    for (int i = 0; i < kStageAttempts; ++i) {
      DRIFTLESS_RETURN_IF_ERROR(start_staging());
      DRIFTLESS_ASSIGN_OR_RETURN(replies, staged(deadline));
      DRIFTLESS_RETURN_IF_ERROR(check_ranks(replies, "staging failed"));
      const std::optional<std::uint64_t> first = replies.front().staged_version;
      // The agent may have been faster than some of them: they look again.
      const bool same = std::ranges::all_of(
          replies, [&](const RankReply& reply) { return reply.staged_version == first; });
      if (same && first && *first >= goal) return *first;
    }
    std::string found;
    for (const RankReply& reply : replies) {
      found += concat(" ", reply.staged_version ? std::to_string(*reply.staged_version) : "none");
    }
    return error(StatusCode::kIncomplete, engine_->link().url(),
                 ": the ranks did not stage version ", goal, ", they have", found);
  }

  [[nodiscard]] Result<std::vector<RankReply>> staged(const Deadline& deadline) {
    Backoff backoff(2ms, 50ms);
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<RankReply> replies,
                                 engine_->ask("status", Json::object(), false));
      const bool done = std::ranges::none_of(
          replies, [](const RankReply& reply) { return reply.state == "staging"; });
      if (done) return replies;
      if (engine_->link().stopping())
        return error(StatusCode::kIncomplete, engine_->link().url(), ": stopped");
      if (!backoff.sleep(deadline))
        return deadline.check(concat(engine_->link().url(), ": staging"));
    }
  }

  // Paused. All ranks at the new version, or all back at the old one, or torn_.
  [[nodiscard]] Result<std::uint64_t> commit(std::uint64_t before, std::uint64_t version) {
    const Status said = engine_->write(version);
    Result<std::vector<RankReply>> replies = engine_->ask("status", Json::object(), true);
    Status refused;
    const bool all_there = replies.ok() && std::ranges::all_of(*replies, [&](const RankReply& r) {
                             return r.version == version;
                           });
    if (!all_there) {
      refused = error(
          StatusCode::kIncomplete, engine_->link().url(), ": version ", version, " was refused: ",
          replies.ok() ? words_of_ranks(*replies) : std::string(replies.status().message()),
          said.ok() ? "" : "; ", said.message());
      replies = engine_->ask("rollback", {{"version", before}}, true);
    }
    const Result<std::uint64_t> now =
        replies.ok() ? one_version(*replies) : Result<std::uint64_t>(replies.status());
    if (!now.ok()) {
      torn_ = true;
      return error(StatusCode::kMismatch, refused.message(),
                   "; and taking it back failed: ", now.status().message(),
                   "; the engine is left paused, restart it");
    }
    refused = first_of(refused, engine_->finish(*now));
    DRIFTLESS_RETURN_IF_ERROR(refused);
    return *now;
  }

  static Status first_of(const Status& first, const Status& second) {
    return first.ok() ? second : first;
  }

  std::unique_ptr<WorkerEngine> engine_;
  std::string source_;
  std::chrono::milliseconds stage_;
  bool torn_ = false;  // ranks at different versions: must not serve
};

}  // namespace

std::unique_ptr<EngineSession> make_worker_session(std::unique_ptr<WorkerEngine> engine,
                                                   std::string source,
                                                   std::chrono::milliseconds stage) {
  return std::make_unique<WorkerSession>(std::move(engine), std::move(source), stage);
}

}  // namespace driftless
