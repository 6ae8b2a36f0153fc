// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_session.h"

#include <iterator>
#include <utility>

#include "plugin/engines/engine_shares.h"

namespace driftless {
namespace {

constexpr std::size_t kMaxDigests = 65'536;

DriverOptions driver_options(const EngineSessionOptions& options,
                             const EngineTransport& transport) {
  DriverOptions made;
  made.source = options.source;
  made.stage_ms = options.stage.count();
  made.ticket = new_nonce();
  made.session = transport.has_sessions();
  if (!options.take_over.is_zero()) made.take_over = to_hex(options.take_over);
  return made;
}

class DrivenSession final : public EngineSession {
 public:
  DrivenSession(std::unique_ptr<EngineTransport> transport, EngineSessionOptions options)
      : transport_(std::move(transport)),
        options_(std::move(options)),
        driver_(driver_options(options_, *transport_)) {}

  Result<std::uint64_t> update(std::uint64_t goal, CommitTimes& times) override {
    EngineGoal wanted;
    wanted.run = options_.run;
    wanted.version = goal;
    wanted.digest_of = [digests = options_.digests](std::uint64_t version) {
      const std::optional<Digest> found = digests ? digests->find(version) : std::nullopt;
      return found ? std::optional<std::string>(to_hex(*found)) : std::nullopt;
    };
    lost_ = true;
    DRIFTLESS_RETURN_IF_ERROR(prove());
    const DriverResult result =
        run_request(driver_, driver_.begin_update(std::move(wanted)), *transport_);
    times = result.times;
    first_.add(result.replies);
    const bool still = result.known && result.identity == held_;
    lost_ = !result.replies.empty() && !still;
    DRIFTLESS_RETURN_IF_ERROR(result.status);
    held_ = result.identity;
    return static_cast<std::uint64_t>(result.identity.version);
  }

  Status check(std::uint64_t version) override {
    EngineCall ask{.op = EngineOp::kReadLabel};
    ask.must = true;
    const EngineAnswer answer = transport_->carry(ask);
    const StatusCode code = answer.status.code();
    if (code == StatusCode::kIo || code == StatusCode::kDeadlineExceeded) ++unanswered_;
    const bool none = code == StatusCode::kUnsupported;  // the engine keeps no label
    if (!none) DRIFTLESS_RETURN_IF_ERROR(answer.status.with_context(transport_->name()));
    const bool gone = std::exchange(unanswered_, 0) > 1;
    if (version == 0) return {};
    if (none || answer.label == std::to_string(version)) return check_identity(none && gone);
    return error(StatusCode::kMismatch, transport_->name(), ": reports that it serves version ",
                 shown(answer.label), ", expected ", version,
                 ": it was restarted, or another client changed its weights");
  }

  [[nodiscard]] bool lost() const override { return lost_; }

  Status close() override {
    return run_request(driver_, driver_.begin_close(), *transport_).status;
  }

 private:
  // Checks more than the label, because a label is only a number, and every run has a version with
  // that number. `gone`: the engine did not answer for a while. Then an engine that does not report
  // what it holds counts as restarted.
  [[nodiscard]] Status check_identity(bool gone) {
    EngineCall ask{.op = EngineOp::kAsk};
    ask.must = ask.quiet = true;
    ask.pause = driver_.pause_state();
    const EngineAnswer answer = transport_->carry(ask);
    driver_.take(answer);
    DRIFTLESS_RETURN_IF_ERROR(answer.status.with_context(transport_->name()));
    for (const RankReply& reply : answer.ranks) {
      const bool silent = reply.process.empty() && reply.state == "unknown";  // it reports nothing
      if ((silent && !gone) || reply.holds == held_) continue;
      return error(StatusCode::kMismatch, transport_->name(), ": rank ", reply.rank, " holds ",
                   to_string(reply.holds), ", expected ", to_string(held_),
                   ": it was restarted, or another client changed its weights");
    }
    return {};
  }

  [[nodiscard]] Status prove() {
    // Whether the workers are ours.
    const bool workers = transport_->has_sessions() && !options_.source.empty();
    if (first_.asked() || !workers) return {};
    const DriverResult opened = run_request(driver_, driver_.begin_open(options_.run), *transport_);
    return first_.ask(opened, *transport_, driver_.pause_state());
  }

  FirstProof first_;
  std::unique_ptr<EngineTransport> transport_;
  EngineSessionOptions options_;
  EngineDriver driver_;
  EngineIdentity held_;  // after the last successful update
  bool lost_ = false;
  unsigned unanswered_ = 0;  // consecutive calls of check() without an answer
};

}  // namespace

void VersionDigests::note(std::uint64_t version, const Digest& digest) {
  const std::scoped_lock lock(mutex_);
  digests_[version] = digest;
  // Version 0 stays.
  if (digests_.size() > kMaxDigests) digests_.erase(std::next(digests_.begin()));
}

std::optional<Digest> VersionDigests::find(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = digests_.find(version);
  return found == digests_.end() ? std::nullopt : std::optional<Digest>(found->second);
}

std::unique_ptr<EngineSession> make_engine_session(std::unique_ptr<EngineTransport> transport,
                                                   EngineSessionOptions options) {
  return std::make_unique<DrivenSession>(std::move(transport), std::move(options));
}

}  // namespace driftless
