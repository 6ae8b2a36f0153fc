// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/receiver.h"

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "formats/run_info.h"
#include "plugin/receive/announced_needs.h"
#include "plugin/receive/run_digests.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

constexpr unsigned kMisfitsBeforeFull = 2;

// Whether the tensors that a partial state holds are those of its version; ok if one side is not
// known. `digests`: of each tensor of the layout there.
Status check_held_tensors(const TargetState& state, const WeightLayout& layout,
                          std::span<const Digest> digests) {
  if (!state.tensors || digests.size() != layout.size()) return {};
  for (const TensorShare& held : *state.tensors) {
    if (held.digest == digests[held.tensor]) continue;
    return error(StatusCode::kWrongBase, "tensor '", layout[held.tensor].name, "' has digest ",
                 to_hex(held.digest), ", but ",
                 state.id.version == 0 ? std::string("the run started from")
                                       : concat("version ", state.id.version, " of the run has"),
                 " ", to_hex(digests[held.tensor]),
                 state.id.version == 0
                     ? ": another base; use the checkpoint that this run started from"
                     : ": it is not that version; start from the run's base, or an anchor");
  }
  return {};
}

bool is_foreign(const TargetState& state, const Hash128& run) {
  return !state.id.run.is_zero() && state.id.run != run;
}

// What the target holds must be of this run, as far as it says, or may be taken over.
Status check_target(const RunInfo& run, const Hash128& take_over, WeightTarget& target) {
  const TargetState held = target.state();
  if (!is_foreign(held, run.run)) {
    DRIFTLESS_RETURN_IF_ERROR(target.adopt_layout(run.layout));
  } else if (take_over == run.run) {
    DRIFTLESS_RETURN_IF_ERROR(target.admit(run.run, run.layout));
  } else {
    return error(StatusCode::kWrongRun, "the weights are version ", held.id.version, " of run ",
                 to_hex(held.id.run), ", but the road carries run ", to_hex(run.run),
                 "; start from that run's base, or, behind an agent, set agent.take_over: ",
                 to_hex(run.run), " there");
  }
  const TargetState state = target.state();
  if (!run.unpublished.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(check_left_alone(target.left_tensors(), run));
  }
  if (is_foreign(state, run.run)) return {};  // a full version of this run replaces it
  if (!state.valid || state.partial || state.id.version != 0) return {};
  if (state.digest != run.base_digest) {
    return error(StatusCode::kWrongBase, "the weights have digest ", to_hex(state.digest),
                 ", but run ", to_hex(run.run), " started from ", to_hex(run.base_digest),
                 ": another base; use the checkpoint that this run started from");
  }
  return {};
}

class FollowingReceiver final : public Receiver {
 public:
  FollowingReceiver(const ReceiverOptions& options, ReceiveRoad& road, WeightTarget& target,
                    const RunInfo& run)
      : options_(options),
        road_(&road),
        target_(&target),
        run_(run.run),
        base_digest_(run.base_digest),
        fetcher_(road, run.run, options),
        base_tensor_digests_(run.tensor_digests),
        digests_(run.layout) {}

  // Once: where an engine's weights lie may change, which part of them it holds does not.
  Status announce_needs() {
    ReceiverNeeds& needs = announced_;
    needs.encodings = options_.encodings;
    if (needs.encodings.empty()) {
      for (const EncodingInfo& each : all_encodings()) needs.encodings.push_back(each.encoding);
    }
    needs.ranges = true;
    needs.run = run_;
    needs.layout = digests_.layout().signature();
    needs.tensors = tensor_needs(digests_.layout(), target_->needs().get());
    announce_checkpoint(*target_, needs);
    needs.old_values = holds_old_values(digests_.layout(), *target_, needs.tensors);
    needs.bytes_per_s = needs.units_per_s = ~std::uint64_t{0};  // room for any
    DRIFTLESS_ASSIGN_OR_RETURN(needs_, needs_to_text(needs, kMaxNeedsBytes));
    DRIFTLESS_ASSIGN_OR_RETURN(const ReceiverNeeds told, parse_needs(needs_, options_.id));
    needs.bytes_per_s = needs.units_per_s = 0;
    // Without its slices, nobody cuts blocks to them.
    if (needs.old_values && told.tensors != needs.tensors) {
      needs.old_values = false;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(needs_, needs_to_text(needs, kMaxNeedsBytes));
    return report();
  }

  // What the target is said to hold must be what the run has for that version: kWrongBase. If the
  // run does not tell, it is unproven.
  Status prove_claim() {
    const TargetState state = own_state();
    look_up_digests(state);
    if (!state.valid) return {};
    return state.partial ? prove_some(state) : prove_all(state);
  }

  Result<bool> stage(const Deadline& deadline) override {
    staged_.reset();
    mapped_.clear();
    if (!target_->state().valid) DRIFTLESS_RETURN_IF_ERROR(target_->recover());
    DRIFTLESS_RETURN_IF_ERROR(resume_left_paused());
    const TargetState state = own_state();
    const Status claim = unproven_.empty() ? Status() : prove_again();
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news, fetcher_.wait(state, deadline));
    if (!news) return claim.ok() ? Result<bool>(false) : claim;
    if (state.id.version != digests_.committed().version) look_up_digests(state);
    Stopwatch watch;
    Result<std::optional<FetchedChain>> fetched = fetcher_.fetch(
        state, misfits_ >= kMisfitsBeforeFull ? FetchMode::kFullOnly : FetchMode::kAny,
        {&digests_.layout(), target_->needs(), target_});
    // Said at once, and again by every report() until something helped.
    const bool not_there =
        fetched.status().code() == StatusCode::kMismatch;  // an agent left it out
    stranded_ = fetched.status().code() == StatusCode::kWrongBase ||
                fetched.status().code() == StatusCode::kCorrupt ||  // and no anchor leads past it
                fetched.status().code() == StatusCode::kIncomplete ||
                (not_there && misfits_ >= kMisfitsBeforeFull);
    if (stranded_) const Status told = report();
    if (not_there) note_misfit(fetched.status());
    if (!fetched.ok() && is_foreign(target_->state(), run_)) {
      return fetched.status().with_context(
          concat("only a full version of run ", to_hex(run_), " takes the place of another run's"));
    }
    if (!fetched.ok()) return fetched.status();
    std::optional<FetchedChain> chain = std::move(*fetched);
    if (!chain) return false;
    report_ = describe(state, *chain);
    report_.fetch_ms = watch.lap_ms();
    const Status based = check_base(state, chain->versions.front());
    note_misfit(based);
    if (!based.ok()) return based;
    committed_.reset();  // it could not be undone any more
    mapped_ = std::move(chain->mapped);
    const Status consistent = digests_.stage(chain->versions);
    const bool coded = std::ranges::any_of(chain->versions, [](const FetchedVersion& version) {
      return version.manifest.encoding == Encoding::kCompact;
    });
    Result<std::unique_ptr<StagedChange>> staged = target_->stage(std::move(chain->versions));
    // Published when nobody knew that the old values, or all of a block, are not held here.
    if (coded && staged.status().code() == StatusCode::kUnsupported) {
      misfits_ = kMisfitsBeforeFull;
      return error(StatusCode::kMismatch, staged.status().message(),
                   "; a full version is taken instead");
    }
    // A target of some tensors can name one that is not what the manifest says.
    if (staged.ok() && !consistent.ok()) staged = consistent;
    note_misfit(staged.status());
    if (!staged.ok()) return staged.status();
    staged_ = std::move(*staged);
    report_.stage_ms = watch.lap_ms();
    return true;
  }

  Result<UpdateReport> commit() override {
    if (!staged_) return error(StatusCode::kInvalidArgument, "nothing is staged");
    // Parts that are mapped may have been changed since they were verified, by a writer gone wrong.
    if (Status changed = check_unchanged(mapped_, options_.threads); !changed.ok()) {
      staged_.reset();
      return changed;
    }
    Stopwatch watch;
    if (options_.pause) {
      DRIFTLESS_RETURN_IF_ERROR(
          options_.pause().with_context("pausing the engine; the weights are as they were"));
    }
    report_.pause_ms = watch.lap_ms();
    Result<CommitReport> commit = staged_->commit();
    if (commit.ok()) {
      committed_ = std::move(staged_);
      digests_.commit();
      note_proven();
      misfits_ = 0;
    }
    note_misfit(commit.status());
    staged_.reset();
    report_.apply_ms = watch.lap_ms();
    const Status resumed = resume();
    report_.resume_ms = watch.lap_ms();
    if (!commit.ok()) {
      if (!target_->state().valid) const Status told = report();  // that it holds nothing
      if (left_paused_) {
        return error(commit.status().code(), commit.status().message(),
                     "; the engine is left paused: the weights are no version now");
      }
      if (resumed.ok()) return commit.status();
      return error(commit.status().code(), commit.status().message(),
                   "; and resuming the engine failed: ", resumed.message());
    }
    report_.version = commit->version;
    report_.digest = commit->digest;
    report_.changed_units = commit->changed_units;
    report_.tensors = std::move(commit->tensors);
    note_speed();
    if (const Status told = report(); !told.ok()) {
      report_.notes.push_back(concat("not reported to the road yet: ", told.to_string()));
    }
    if (!resumed.ok()) {
      return resumed.with_context(
          concat("version ", commit->version, " is committed, but the engine was not resumed"));
    }
    return report_;
  }

  Status rollback() override {
    if (staged_) {
      staged_.reset();
      return {};
    }
    if (!committed_) return error(StatusCode::kInvalidArgument, "there is nothing to take back");
    if (options_.pause) DRIFTLESS_RETURN_IF_ERROR(options_.pause());
    const Status undone = committed_->undo();
    Status resumed = resume();
    if (undone.ok()) {
      digests_.undo();
      unproven_ = unproven_before_;
    }
    if (undone.ok() || !target_->state().valid) {
      committed_.reset();
      const Status ignored = report();  // said again by the next report()
    }
    return undone.ok() ? resumed : undone;
  }

  Status report() override {
    const TargetState state = own_state();
    ReceiverReport report;
    report.id = options_.id;
    if (state.valid) {  // else it has nothing: the road then keeps an anchor for it
      report.version = state.id.version;
      report.proof = to_hex(state.digest);
      const std::size_t unproven =
          unproven_.empty() ? target_->unproven_tensors() : digests_.layout().size();
      if (unproven > 0) report.proof += concat(kUnproven, unproven);
      report.proof += concat(kProofRun, to_hex(run_));
    }
    if (stranded_) report.proof = kAnchorWanted;
    report.needs = needs_;
    return road_->report(report, Deadline::after(options_.report_deadline));
  }

  Status leave() override { return road_->leave(Deadline::after(options_.report_deadline)); }

  [[nodiscard]] TargetState state() const override { return target_->state(); }
  [[nodiscard]] const std::string& unproven() const override { return unproven_; }
  [[nodiscard]] std::optional<std::uint64_t> staged_version() const override {
    return staged_ ? std::optional(report_.version) : std::nullopt;
  }
  [[nodiscard]] const Hash128& run() const override { return run_; }
  [[nodiscard]] const std::vector<Digest>& tensor_digests() const override {
    const RunDigests::At& committed = digests_.committed();
    return committed.version == own_state().id.version ? committed.tensors : unknown_;
  }
  [[nodiscard]] const WeightLayout& layout() const override { return digests_.layout(); }

 private:
  // What the target holds of this run: nothing while it holds another's, which a full version is to
  // replace.
  [[nodiscard]] TargetState own_state() const {
    TargetState state = target_->state();
    return is_foreign(state, run_) ? TargetState() : state;
  }

  // How fast it was, for a publisher that chooses its encoding by that; told with the next report.
  void note_speed() {
    constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;  // less shows the latency
    if (report_.anchor || report_.wire_bytes < kLeastBytes || report_.fetch_ms <= 0) return;
    const auto per_s = [](std::uint64_t count, double ms) {
      return rounded_speed(static_cast<double>(count) / std::max(ms, 0.1) * 1e3);
    };
    announced_.bytes_per_s = per_s(report_.wire_bytes, report_.fetch_ms);
    announced_.units_per_s = per_s(digests_.layout().total_units(), report_.stage_ms);
    Result<std::string> text = needs_to_text(announced_, kMaxNeedsBytes);
    if (!text.ok()) return;
    const Result<ReceiverNeeds> told = parse_needs(*text, options_.id);
    // Without the slices, nobody would cut blocks to them.
    if (told.ok() && told->tensors == announced_.tensors) needs_ = std::move(*text);
  }

  // Not while the weights are parts of two versions.
  [[nodiscard]] Status resume() {
    left_paused_ = options_.resume && !target_->state().valid;
    return options_.resume && !left_paused_ ? options_.resume() : Status();
  }
  // Once what was left half done has been ended.
  [[nodiscard]] Status resume_left_paused() {
    return left_paused_ && target_->state().valid ? resume() : Status();
  }

  // Of the version that the target holds already. None if it holds no version.
  void look_up_digests(const TargetState& state) {
    const std::uint64_t version = state.id.version;
    digests_.set({version, state.valid ? fetcher_.digests_at(version, digests_.layout(),
                                                             base_tensor_digests_)
                                       : std::vector<Digest>()});
  }

  // Of a target of some tensors: each of them.
  Status prove_some(const TargetState& state) {
    const std::vector<Digest>& known = digests_.committed().tensors;
    const std::string said =
        concat("the weights are said to be version ", state.id.version, " of run ", to_hex(run_));
    if (known.empty() && state.id.version > 0 && !state.version_digest) {
      return error(StatusCode::kWrongBase, said, ", some tensors are not held here, and the ",
                   "manifests that led there are gone: nothing proves it; start from the run's ",
                   "base, or as holding nothing");
    }
    if (known.empty() || !state.tensors) {
      unproven_ = concat(said, ", and nothing tells the digests of the tensors that are held here");
    }
    return check_held_tensors(state, digests_.layout(), known);
  }

  // Of a target of all tensors; version 0 was compared before.
  Status prove_all(const TargetState& state) {
    const std::uint64_t version = state.id.version;
    if (version == 0) return {};
    const std::optional<Digest> expected = fetcher_.digest_at(version);
    unproven_.clear();
    if (!expected) {
      unproven_ = concat("the weights are said to be version ", version, " of run ", to_hex(run_),
                         ", and no manifest on the road tells its digest");
    }
    if (!expected || *expected == state.digest) return {};
    return error(StatusCode::kWrongBase, "the weights are said to be version ", version,
                 ", and have digest ", to_hex(state.digest), ", but version ", version, " of run ",
                 to_hex(run_), " has ", to_hex(*expected),
                 ": they are not that version; start from the run's base, or as holding nothing");
  }

  // By a manifest that was not there before. If the weights are not that version, only a full one
  // helps, and the trainer is asked for it.
  Status prove_again() {
    const TargetState state = own_state();
    if (!state.valid || state.partial) return {};
    Status claim = prove_all(state);
    if (claim.ok()) return claim;
    unproven_ = std::string(claim.message());
    misfits_ = kMisfitsBeforeFull;
    stranded_ = true;
    const Status told = report();
    return claim;
  }

  // What is committed was proven on top of what was held before: of all tensors by their digest, of
  // some of them if the run tells theirs.
  void note_proven() {
    unproven_before_ = unproven_;
    if (!target_->state().partial || !digests_.committed().tensors.empty()) unproven_.clear();
  }

  // A target of some tensors cannot know the digest of all: of version 0 the run says it.
  [[nodiscard]] Status check_base(const TargetState& state, const FetchedVersion& first) const {
    const Manifest& manifest = first.manifest;
    const bool delta = manifest.encoding != Encoding::kFull;
    if (!state.partial || !delta || manifest.base_version != 0) return {};
    if (manifest.base_digest == base_digest_) return {};
    return error(StatusCode::kWrongBase, first.source, ": builds on digest ",
                 to_hex(manifest.base_digest), ", but run ", to_hex(run_), " started from ",
                 to_hex(base_digest_), "; send a full version");
  }

  // A delta that does not fit the weights, or itself. Once it may be the fetched bytes; then it is
  // the weights, or the version itself, and only a full one helps.
  void note_misfit(const Status& status) {
    if (status.code() == StatusCode::kMismatch || status.code() == StatusCode::kWrongBase ||
        status.code() == StatusCode::kCorrupt) {
      ++misfits_;
    }
  }

  static UpdateReport describe(const TargetState& state, const FetchedChain& chain) {
    UpdateReport report;
    report.from_version = state.valid ? state.id.version : 0;
    report.versions = chain.versions.size();
    report.anchor = chain.anchor;
    report.wire_bytes = chain.manifest_bytes + chain.fetched_bytes;
    report.needed_bytes = chain.needed_bytes;
    for (const FetchedVersion& version : chain.versions) {
      report.full_bytes += version.manifest.full_bytes;
      report.delta_bytes += version.manifest.payload_bytes;
      report.version = version.manifest.id.version;
    }
    return report;
  }

  ReceiverOptions options_;
  ReceiveRoad* road_;
  WeightTarget* target_;
  Hash128 run_;
  Digest base_digest_;  // of version 0
  VersionFetcher fetcher_;
  std::vector<Digest> base_tensor_digests_;
  RunDigests digests_;
  std::vector<Digest> unknown_;     // stays empty
  std::vector<MappedPart> mapped_;  // of what is staged
  ReceiverNeeds announced_;         // told first, and since then
  std::string needs_;               // the same, as reported
  unsigned misfits_ = 0;            // in a row
  bool left_paused_ = false;
  bool stranded_ = false;        // neither the next version nor an anchor is there, undamaged
  std::string unproven_;         // why nothing proves what the target is said to hold; empty: it is
  std::string unproven_before_;  // the same, of what rollback() leads back to
  std::unique_ptr<StagedChange> staged_;
  std::unique_ptr<StagedChange> committed_;  // the last one, for rollback()
  UpdateReport report_;                      // of what is staged
};

}  // namespace

Result<std::unique_ptr<Receiver>> Receiver::open(const ReceiverOptions& options, ReceiveRoad& road,
                                                 WeightTarget& target, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(options.id).with_context("the receiver's id"));
  DRIFTLESS_ASSIGN_OR_RETURN(const Announcement announcement,
                             read_announcement(road, options.fetch_deadline, deadline));
  const RunInfo& run = announcement.run;
  DRIFTLESS_RETURN_IF_ERROR(target.recover());
  DRIFTLESS_RETURN_IF_ERROR(check_target(run, options.take_over, target));
  if (const TargetState state = target.state();
      state.valid && !state.partial && state.id.version > 0 && !is_foreign(state, run.run)) {
    DRIFTLESS_RETURN_IF_ERROR(road.check_held(state.id.version, to_hex(state.digest),
                                              deadline.sooner(options.fetch_deadline)));
  }
  target.set_proof(options.proof);
  ReceiverOptions own = options;
  if (own.threads == 0) own.threads = default_threads();
  auto receiver = std::make_unique<FollowingReceiver>(own, road, target, run);
  DRIFTLESS_RETURN_IF_ERROR(receiver->prove_claim());
  DRIFTLESS_RETURN_IF_ERROR(receiver->announce_needs());
  return std::unique_ptr<Receiver>(std::move(receiver));
}

}  // namespace driftless
