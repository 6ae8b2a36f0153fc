// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/receiver.h"

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "formats/records.h"
#include "plugin/receive/anchor_offer.h"
#include "plugin/receive/target_needs.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

constexpr unsigned kMisfitsBeforeFull = 2;
// A caller with a shorter deadline wants an answer now.
constexpr std::chrono::milliseconds kPatient{50};
constexpr std::chrono::milliseconds kBetweenOffers{1}, kOfferTime{2'000};

bool is_foreign(const TargetState& state, const Hash128& run) {
  return !state.id.run.is_zero() && state.id.run != run;
}

// Gives the target the run's layout. Not ok if it holds another base, or another run that may not
// be taken over.
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

// 1 if a delta does not fit the weights, or is damaged. The first time, the fetched bytes may be
// the cause; after that, the weights or the version itself, and only a full version helps.
unsigned is_misfit(const Status& status) {
  return status.code() == StatusCode::kMismatch || status.code() == StatusCode::kWrongBase ||
                 status.code() == StatusCode::kCorrupt
             ? 1
             : 0;
}

// Of the deadline for opening: the run may be announced just before it.
std::chrono::milliseconds time_left(const Deadline& deadline) {
  return std::max<std::chrono::milliseconds>(deadline.remaining(), TrainerContact::kSignOfLife);
}

UpdateReport describe(const TargetState& state, const FetchedChain& chain) {
  UpdateReport report;
  report.from_version = state.valid ? state.id.version : 0;
  report.versions = chain.versions.size();
  report.anchor = chain.anchor;
  report.wire_bytes = chain.manifest_bytes + chain.fetched_bytes;
  report.needed_bytes = chain.needed_bytes;
  for (const FetchedVersion& version : chain.versions) {
    report.full_bytes += version.manifest.full_bytes;
    report.delta_bytes += payload_of(version.manifest);
    report.version = version.manifest.id.version;
    report.created = version.manifest.created;
  }
  return report;
}

}  // namespace

void ReceiverCounts::add(const UpdateReport& report) {
  newest = std::max(newest, report.version);
  ++commits;
  versions += report.versions;
  anchors += report.anchor ? 1 : 0;
  changed_units += report.changed_units;
  delta_bytes += report.delta_bytes;
  wire_bytes += report.wire_bytes;
  needed_bytes += report.needed_bytes;
  fetch_ms += report.fetch_ms;
  stage_ms += report.stage_ms;
  pause_ms += report.pause_ms;
  apply_ms += report.apply_ms;
  resume_ms += report.resume_ms;
  longest_pause_ms =
      std::max(longest_pause_ms, report.pause_ms + report.apply_ms + report.resume_ms);
}

Receiver::Receiver(const ReceiverOptions& options, ReceiveRoad& road, WeightTarget& target,
                   const RunInfo& run)
    : options_(options),
      road_(&road),
      target_(&target),
      fetcher_(std::make_unique<VersionFetcher>(road, run.run, options)),
      digests_(run),
      offer_(std::make_unique<AnchorOffer>()),
      contact_(options.connect_deadline),
      end_(options.fetch_deadline) {}

Receiver::~Receiver() = default;

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
  ReceiverOptions all_options = options;
  if (all_options.threads == 0) all_options.threads = default_threads();
  all_options.report_deadline =
      TrainerContact::report_time(options.report_deadline, options.connect_deadline);
  std::unique_ptr<Receiver> receiver(new Receiver(all_options, road, target, run));
  const Deadline soon = Deadline::after(time_left(deadline));
  receiver->fetcher_->end_reads_by(soon);
  DRIFTLESS_RETURN_IF_ERROR(receiver->digests_.prove(receiver->held_state(), *receiver->fetcher_));
  DRIFTLESS_RETURN_IF_ERROR(receiver->announce_needs(soon));
  if (!receiver->unproven().empty() && all_options.warn) {
    all_options.warn(
        error(StatusCode::kIncomplete, receiver->unproven(), "; it is reported as unproven"));
  }
  return receiver;
}

// Called once: an engine's weights may move, but which part of them it holds does not change.
Status Receiver::announce_needs(const Deadline& deadline) {
  ReceiverNeeds& needs = needs_values_;
  needs.encodings = options_.encodings;
  if (needs.encodings.empty()) {
    for (const EncodingInfo& each : all_encodings()) needs.encodings.push_back(each.encoding);
  }
  needs.ranges = true;
  needs.run = run();
  needs.layout = digests_.layout().signature();
  needs.tensors = tensor_needs(digests_.layout(), target_->needs().get());
  announce_checkpoint(*target_, needs);
  needs.old_values = holds_old_values(digests_.layout(), *target_, needs.tensors);
  needs.bytes_per_s = needs.units_per_s = ~std::uint64_t{0};  // reserves room for any speed
  DRIFTLESS_ASSIGN_OR_RETURN(needs_, needs_to_text(needs, kMaxNeedsBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const ReceiverNeeds parsed, parse_needs(needs_, options_.id));
  needs.bytes_per_s = needs.units_per_s = 0;
  // If its slices do not fit into the announcement, blocks are not cut to them.
  if (needs.old_values && parsed.tensors != needs.tensors) {
    needs.old_values = false;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(needs_, needs_to_text(needs, kMaxNeedsBytes));
  const Status reported = send_report(std::min(options_.report_deadline, time_left(deadline)));
  contact_.note(reported);
  return reported;
}

Result<Receiver::Newest> Receiver::poll(const Deadline& deadline) {
  const TargetState state = target_->state();
  Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(200));
  Newest found;
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed,
                               road_->list(Deadline::after(options_.report_deadline)));
    for (const PublicationId& id : listed) {
      found.version = std::max(found.version, id.version);
      found.newer = found.newer || !state.valid || id.version > state.id.version;
    }
    counts_.newest = std::max(counts_.newest, found.version);
    sign_of_life();
    if (found.newer || !backoff.sleep(deadline)) return found;
  }
}

Result<bool> Receiver::stage(const Deadline& deadline) {
  std::chrono::milliseconds wait = TrainerContact::kSignOfLife;
  const bool patient = deadline.remaining() >= kPatient;
  for (;;) {
    Result<bool> staged = stage_once(deadline.sooner(wait));
    if (!staged.ok()) ++counts_.stage_failures;
    if (!staged.ok() || *staged) return staged;
    sign_of_life();
    const bool offers = patient && !contact_.silent();
    wait = offers && offer_anchor() ? kBetweenOffers : TrainerContact::kSignOfLife;
    if (deadline.expired()) return false;
  }
}

void Receiver::offer_nothing() { offer_.reset(); }

// A failure here does no harm: other receivers then read from the trainer.
bool Receiver::offer_anchor() {
  const TargetState state = target_->state();
  if (offer_ == nullptr || !state.valid || state.id.run != run()) return false;
  const Deadline deadline = Deadline::after(options_.report_deadline).sooner(kOfferTime);
  const Result<bool> more = offer_->offer_next(*road_, *target_, state.id, deadline);
  return more.ok() && *more;
}

Result<bool> Receiver::stage_once(const Deadline& deadline) {
  staged_.reset();
  mapped_.clear();
  if (!target_->state().valid) DRIFTLESS_RETURN_IF_ERROR(target_->recover());
  // Recovery has completed a commit that left the engine paused: resume it.
  if (left_paused_ && target_->state().valid) DRIFTLESS_RETURN_IF_ERROR(resume());
  const TargetState state = held_state();
  fetcher_->end_reads_by(Deadline::after(options_.report_deadline));
  const Status claim = digests_.prove_again(state, *fetcher_);
  if (!claim.ok()) {  // only a full version helps: ask for one
    misfits_ = kMisfitsBeforeFull;
    stranded_ = true;
    const Status reported = send_report(options_.report_deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const bool news, fetcher_->wait(state, deadline));
  if (!news) return claim.ok() ? Result<bool>(false) : claim;
  fetcher_->end_reads_by(Deadline::after(options_.fetch_deadline));  // includes the fetch
  digests_.find(state, *fetcher_);
  Stopwatch watch;
  Result<std::optional<FetchedChain>> fetched = fetcher_->fetch(
      state, misfits_ >= kMisfitsBeforeFull ? FetchMode::kFullOnly : FetchMode::kAny,
      {&digests_.layout(), target_->needs(), target_});
  // Report the lack of a usable version now, and in every report() until one is there.
  const bool not_there = fetched.status().code() == StatusCode::kMismatch;  // an agent left it out
  stranded_ = fetched.status().code() == StatusCode::kWrongBase ||
              fetched.status().code() == StatusCode::kCorrupt ||  // and no newer anchor is there
              fetched.status().code() == StatusCode::kIncomplete ||
              (not_there && misfits_ >= kMisfitsBeforeFull);
  if (stranded_) const Status reported = send_report(options_.report_deadline);
  if (not_there) ++misfits_;
  if (!fetched.ok() && is_foreign(target_->state(), run())) {
    return fetched.status().with_context(
        concat("only a full version of run ", to_hex(run()), " replaces another run's weights"));
  }
  if (!fetched.ok()) return fetched.status();
  if (!*fetched) return false;
  report_ = describe(state, **fetched);
  report_.carrier = road_->carrier();
  report_.run = run();
  report_.fetch_ms = watch.lap_ms();
  return stage_chain(state, std::move(**fetched));
}

Result<bool> Receiver::stage_chain(const TargetState& state, FetchedChain chain) {
  Stopwatch watch;
  const Status based = digests_.check_base(state, chain.versions.front());
  misfits_ += is_misfit(based);
  if (!based.ok()) return based;
  committed_.reset();  // undo() is impossible from now on
  mapped_ = std::move(chain.mapped);
  const Status consistent = digests_.stage(chain.versions);
  const bool coded = std::ranges::any_of(chain.versions, [](const FetchedVersion& version) {
    return version.manifest.encoding == Encoding::kCompact;
  });
  Result<std::unique_ptr<StagedChange>> staged = target_->stage(std::move(chain.versions));
  // The publisher assumed that this target holds the old values, or the rest of a block.
  if (coded && staged.status().code() == StatusCode::kUnsupported) {
    misfits_ = kMisfitsBeforeFull;
    return error(StatusCode::kMismatch, staged.status().message(),
                 "; a full version is taken instead");
  }
  // The target cannot check the digests of tensors that it does not hold.
  if (staged.ok() && !consistent.ok()) staged = consistent;
  misfits_ += is_misfit(staged.status());
  if (!staged.ok()) return staged.status();
  staged_ = std::move(*staged);
  report_.stage_ms = watch.lap_ms();
  return true;
}

Result<bool> Receiver::stage_patiently(const Deadline& deadline) {
  Result<bool> staged = stage(deadline);
  const StatusCode code = staged.status().code();
  if (code != StatusCode::kWrongBase && code != StatusCode::kMismatch &&
      code != StatusCode::kCorrupt && code != StatusCode::kIncomplete) {
    patience_.reset();
    return staged;
  }
  trouble_ = staged.status();
  if (!patience_) {
    patience_ = Deadline::after(options_.fetch_deadline);
    warned_ = false;
  }
  // Most gaps close at once, so the caller is warned only if one lasts.
  const bool lasts = patience_->remaining() < options_.fetch_deadline - TrainerContact::kSignOfLife;
  if (lasts && !std::exchange(warned_, true) && options_.warn) {
    options_.warn(trouble_.with_context("waiting for an anchor, or for what is missing"));
  }
  sign_of_life();
  constexpr std::chrono::milliseconds kBetween{200};
  if (!Backoff(kBetween, kBetween).sleep(*patience_)) return staged;
  return false;
}

Result<UpdateReport> Receiver::commit() {
  const TargetState before = target_->state();
  const Status applied = apply();
  if (!applied.ok()) {
    ++counts_.commit_failures;
    // If only resuming failed, the commit holds.
    const TargetState after = target_->state();
    if (after.valid && !(after == before)) ++counts_.commits;
    return applied;
  }
  timed_ = report_.digest;
  timed_stage_ms_ = report_.fetch_ms + report_.stage_ms;
  timed_commit_ms_ = report_.pause_ms + report_.apply_ms + report_.resume_ms;
  const Status recorded = options_.record ? options_.record(report_) : Status();
  if (!recorded.ok()) report_.notes.push_back(recorded.to_string());
  counts_.add(report_);
  return report_;
}

Status Receiver::apply() {
  if (!staged_) return error(StatusCode::kInvalidArgument, "nothing is staged");
  // A faulty writer may have changed mapped parts since they were verified.
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
    digests_.commit(target_->state().partial);
    misfits_ = 0;
  }
  misfits_ += is_misfit(commit.status());
  staged_.reset();
  report_.apply_ms = watch.lap_ms();
  Status resumed = resume();
  report_.resume_ms = watch.lap_ms();
  report_.done = std::chrono::steady_clock::now();  // the report to the road may take long
  if (!commit.ok()) {
    if (!target_->state().valid) {
      const Status reported = report();  // reports that no version is held
    }
    if (left_paused_) {
      return error(commit.status().code(), commit.status().message(),
                   "; the engine is left paused: the weights match no version");
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
  if (const Status reported = report(); !reported.ok()) {
    report_.notes.push_back(concat("not reported to the road yet: ", reported.to_string()));
  }
  if (resumed.ok()) return {};
  return resumed.with_context(
      concat("version ", commit->version, " is committed, but the engine was not resumed"));
}

Status Receiver::rollback() {
  if (staged_) {
    staged_.reset();
    ++counts_.rollbacks;
    return {};
  }
  if (!committed_) return error(StatusCode::kInvalidArgument, "there is nothing to take back");
  if (options_.pause) DRIFTLESS_RETURN_IF_ERROR(options_.pause());
  const Status undone = committed_->undo();
  Status resumed = resume();
  if (undone.ok()) digests_.undo();
  if (undone.ok() || !target_->state().valid) {
    committed_.reset();
    const Status ignored = report();  // the next report() repeats it
  }
  if (undone.ok() && resumed.ok()) ++counts_.rollbacks;
  return undone.ok() ? resumed : undone;
}

Status Receiver::report() {
  Status reported = send_report(options_.report_deadline);
  contact_.note(reported);
  return reported;
}

Status Receiver::send_report(std::chrono::milliseconds longest) {
  const TargetState state = held_state();
  ReceiverReport report;
  report.id = options_.id;
  if (state.valid) {  // else the road keeps an anchor for it
    report.version = state.id.version;
    const std::size_t unproven =
        digests_.unproven().empty() ? target_->unproven_tensors() : digests_.layout().size();
    report.proof = to_text(ReportProof{to_hex(state.digest), to_hex(run()), unproven,
                                       timed_ == state.digest, timed_stage_ms_, timed_commit_ms_});
  }
  if (stranded_) report.proof = kAnchorWanted;
  report.needs = needs_;
  return road_->report(report, contact_.begin_report(longest));
}

// A report that the road refuses is not fatal: a directory may be read-only.
void Receiver::sign_of_life() {
  if (!contact_.due()) return;
  const Status reported = report();
  if (reported.ok()) return;
  ++counts_.failed_reports;
  if (!contact_.silent() && options_.warn) options_.warn(reported);
}

Result<std::optional<EndOfRun>> Receiver::listen_for_end() {
  if (!options_.fetch_end) return std::optional<EndOfRun>();
  return end_.listen(options_.fetch_end(), run());
}

Status Receiver::leave() {
  const auto wait = contact_.silent() ? TrainerContact::kSignOfLife : options_.report_deadline;
  return road_->leave(Deadline::after(wait));
}

std::optional<std::uint64_t> Receiver::staged_version() const {
  return staged_ ? std::optional(report_.version) : std::nullopt;
}

const std::vector<Digest>& Receiver::tensor_digests() const {
  return digests_.tensors(held_state().id.version);
}

TargetState Receiver::held_state() const {
  TargetState state = target_->state();
  return is_foreign(state, run()) ? TargetState() : state;
}

// Announces the measured speed with the next report, for publishers that choose the encoding by it.
void Receiver::note_speed() {
  constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;  // fewer show only the latency
  if (report_.anchor || report_.wire_bytes < kLeastBytes || report_.fetch_ms <= 0) return;
  const auto per_s = [](std::uint64_t count, double ms) {
    return rounded_speed(static_cast<double>(count) / std::max(ms, 0.1) * 1e3);
  };
  needs_values_.bytes_per_s = per_s(report_.wire_bytes, report_.fetch_ms);
  needs_values_.units_per_s = per_s(digests_.layout().total_units(), report_.stage_ms);
  Result<std::string> text = needs_to_text(needs_values_, kMaxNeedsBytes);
  if (!text.ok()) return;
  const Result<ReceiverNeeds> parsed = parse_needs(*text, options_.id);
  // If the slices no longer fit beside the speed, keeps the earlier text, which has them.
  if (parsed.ok() && parsed->tensors == needs_values_.tensors) needs_ = std::move(*text);
}

Status Receiver::resume() {
  left_paused_ = options_.resume && !target_->state().valid;
  return options_.resume && !left_paused_ ? options_.resume() : Status();
}

}  // namespace driftless
