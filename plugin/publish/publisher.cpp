// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "core/stopwatch.h"
#include "formats/receiver_proof.h"
#include "formats/run_info.h"
#include "plugin/publish/publisher_rank.h"

namespace driftless {
namespace {

std::string percent(double share) {
  const auto tenths = static_cast<std::uint64_t>(std::llround(share * 1000));
  return concat(tenths / 10, ".", tenths % 10, " %");
}

std::string step_name(std::uint64_t step) {
  return step == kNoStep ? std::string("no step") : concat("step ", step);
}

// A version has the weights of one step.
Status check_steps(const std::vector<RankMessage>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].step == ranks[0].step) continue;
    return error(StatusCode::kInvalidArgument, "publisher rank ", rank, " publishes ",
                 step_name(ranks[rank].step), ", publisher rank 0 ", step_name(ranks[0].step),
                 ": no version is made of different steps");
  }
  return {};
}

}  // namespace

Result<PublishReport> PublisherRank::publish(WeightSource& weights,
                                             std::optional<std::uint64_t> step) {
  if (step && *step >= Group::kStepLimit) {
    return error(StatusCode::kInvalidArgument, "step ", *step, " is too large");
  }
  step_ = step.value_or(kNoStep);
  try {
    return publish_guarded(weights);
  } catch (const std::exception& caught) {
    // Memory is what throws; the next call finds the snapshot unfit for deltas.
    needs_full_ = true;
    undo_.clear();
    mirror_undo_.clear();
    if (options_.device != nullptr) options_.device->abort();
    const Status dropped = road_.abort();
    return error(StatusCode::kNoSpace, "publisher rank ", group_.rank(), ": ", caught.what());
  }
}

Result<PublishReport> PublisherRank::publish_guarded(WeightSource& weights) {
  Stopwatch total;
  Stopwatch watch;
  const Deadline deadline = Deadline::after(options_.deadline);
  group_.next_epoch(step_ == kNoStep ? std::nullopt : std::optional(step_));
  companions_ = weights.companions_dir();
  if (!observed_)
    static_cast<void>(observe(weights, nullptr, false));  // what it found fails the plan
  DRIFTLESS_ASSIGN_OR_RETURN(LeaderMessage plan,
                             make_plan(*std::exchange(observed_, std::nullopt), deadline));
  PublishReport report;
  report.notes = plan.notes;
  report.manifest_publish_ms = watch.lap_ms();
  for (;;) {
    DRIFTLESS_RETURN_IF_ERROR(begin_together({plan.version, PublicationKind::kVersion}, deadline));
    const RankMessage mine = produce(plan, weights, deadline);
    report.process_ms += watch.lap_ms();
    report.flush_ms = flush_ms_;
    Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
    LeaderMessage verdict;
    if (group_.leads()) verdict = conclude(plan, std::move(ranks), deadline);
    const Status heard = hear(verdict, deadline);
    report.manifest_publish_ms += watch.lap_ms();
    if (!heard.ok() && !group_.leads()) {
      verdict.verdict = Verdict::kDoubt;  // the leader has decided, but how?
      verdict.status = heard.with_context(concat("the verdict on version ", plan.version));
    } else if (!heard.ok()) {
      verdict.notes.push_back(concat("a publisher rank did not hear the verdict on version ",
                                     plan.version, ": ", heard.message()));
    }
    if (!verdict.status.ok()) return give_up(plan, verdict, mine);
    report.notes.insert(report.notes.end(), verdict.notes.begin(), verdict.notes.end());
    if (verdict.verdict == Verdict::kRedoFull) {
      take_back(plan.full);
      if (!group_.leads()) DRIFTLESS_RETURN_IF_ERROR(road_.abort());  // the leader has begun anew
      plan.full = true;
      continue;
    }
    commit(plan.version, mine.tensor_digests, verdict.digest);
    report.version = plan.version;
    report.base_version = plan.base_version;
    report.encoding = plan.full ? Encoding::kFull : encoding_;
    report.digest = digest_;
    report.changed_units = verdict.changed_units;
    report.total_units = layout_.total_units();
    report.full_bytes = layout_.total_bytes();
    report.delta_bytes = verdict.delta_bytes;
    report.wire_bytes = verdict.wire_bytes;
    report.mirror_bytes = mirror_bytes_;
    report.live = std::exchange(live_costs_, {});
    if (verdict.anchor) {
      const Status anchored = add_anchor(report.notes);
      report.anchor = anchored.ok();
      if (!anchored.ok()) report.notes.emplace_back(anchored.message());
    }
    if (group_.leads() && !plan.full) {
      chooser_.note({encoding_, verdict.changed_units, layout_.total_units(), verdict.wire_bytes,
                     report.process_ms, report.flush_ms});
    }
    if (group_.leads()) prune(report.notes);
    report.total_ms = total.lap_ms();
    return report;
  }
}

// Nothing was committed, as far as this rank knows.
Status PublisherRank::give_up(const LeaderMessage& plan, const LeaderMessage& verdict,
                              const RankMessage& mine) {
  if (verdict.verdict == Verdict::kDoubt) {
    doubt_ = Doubt{plan.version, mine.tensor_digests, verdict.digest, plan.full, sealing_};
    return verdict.status;
  }
  const Status dropped = road_.abort();
  take_back(plan.full);
  return verdict.status;
}

Status PublisherRank::check_source(const WeightSource& weights) const {
  const std::span<const TensorSpec> tensors = weights.tensors();
  for (std::size_t i = 0; i < std::max(tensors.size(), offered_.size()); ++i) {
    if (i < tensors.size() && i < offered_.size() && tensors[i] == offered_[i]) continue;
    const TensorSpec& odd = i < tensors.size() ? tensors[i] : offered_[i];
    return error(StatusCode::kWrongLayout, "tensor '", odd.name, "' (number ", i,
                 "): the weights offered are not those that the publisher was opened with");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<TensorBox> boxes, boxes_of(weights));
  if (boxes == boxes_) return {};
  return error(StatusCode::kWrongLayout,
               "the blocks offered are not those that the publisher was opened with");
}

Result<bool> PublisherRank::published(const PublicationId& id, const Hash128& manifest,
                                      const Deadline& deadline) {
  const Result<std::optional<Hash128>> there = road_.published(id, deadline);
  if (!there.ok()) return note_fence(there.status());
  if (!there->has_value()) return false;
  if (**there == manifest) return true;
  return note_fence(error(StatusCode::kWrongRun, to_string(id),
                          " is there with a manifest of hash ", to_hex(**there),
                          ", this publisher's has ", to_hex(manifest)));
}

Status PublisherRank::note_fence(Status said) {
  if (said.code() != StatusCode::kWrongRun) return said;
  const Result<std::string> text = announced(Deadline::after(std::chrono::milliseconds(0)));
  const Result<RunInfo> now = text.ok() ? parse_run_info(*text, "the announcement on the road")
                                        : Result<RunInfo>(text.status());
  const std::string carries =
      now.ok() ? concat("the road carries run ", to_hex(now->run), " now",
                        now->run == id_.run ? ", the same, by another publisher" : "")
               : std::string("nobody can say which run the road carries now");
  fenced_ =
      error(StatusCode::kWrongRun, "run ", to_hex(id_.run), " of this trainer is fenced at ",
            "version ", id_.version, ": another publisher has taken its road over, and ", carries,
            ". Stop one of the two trainers, then start this one again: ", said.message());
  return fenced_;
}

void PublisherRank::resolve_doubt(bool published) {
  if (!doubt_) return;
  if (published) {
    commit(doubt_->version, doubt_->tensor_digests, doubt_->digest);
  } else {
    const Status dropped = road_.abort();
    take_back(doubt_->full);
  }
  doubt_.reset();
}

LeaderMessage PublisherRank::plan_of(const std::vector<RankMessage>& ranks,
                                     const Deadline& deadline) {
  LeaderMessage plan;
  plan.status = fenced_;
  if (plan.status.ok() && doubt_) {  // whether the version that it sealed, perhaps, is there
    const Result<bool> there =
        published({doubt_->version, PublicationKind::kVersion}, doubt_->manifest, deadline);
    plan.status = there.status();
    if (there.ok()) resolve_doubt(*there);
  }
  if (!plan.status.ok()) return plan;
  plan.full = options_.mode == UpdateMode::kFull;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const bool ahead = ranks[rank].doubtful == id_.version && ranks[rank].doubtful != 0;
    if (ahead || ranks[rank].version == id_.version) continue;
    plan.status = error(StatusCode::kInternal, "publisher rank ", rank, " is at version ",
                        ranks[rank].version, ", the leader at ", id_.version,
                        ": restart all publisher ranks together");
    return plan;
  }
  plan.status = check_steps(ranks);
  if (!plan.status.ok()) return plan;
  for (const RankMessage& rank : ranks) plan.full = plan.full || rank.needs_full;
  plan.full = plan.full || needs_full_ || highest_number_ > id_.version;
  plan.base_version = id_.version;
  plan.version = std::max(id_.version, highest_number_) + 1;
  plan.full = plan.full || (anchors_among_versions() && anchor_due(plan.version));
  plan.digest = digest_;
  hear_receivers(plan);
  plan.status = note_fence(road_.begin({plan.version, PublicationKind::kVersion}, deadline));
  return plan;
}

Result<LeaderMessage> PublisherRank::make_plan(Status ready, const Deadline& deadline) {
  RankMessage mine;
  mine.status = std::move(ready);
  mine.version = id_.version;
  mine.step = step_;
  mine.doubtful = doubt_ ? doubt_->version : 0;
  mine.needs_full = needs_full_ || (doubt_ && doubt_->full);
  Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage plan;
  if (group_.leads()) {
    plan.status = ranks.status();
    if (ranks.ok()) plan = plan_of(*ranks, deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(plan, deadline));
  if (doubt_) {
    doubt_->digest = told.digest;
    resolve_doubt(doubt_->version == told.base_version);
  }
  DRIFTLESS_RETURN_IF_ERROR(adopt(told));
  return told;
}

// A tensor that a source forgets would pass for unchanged: each must come, and come once.
Status PublisherRank::visit(WeightSource& weights,
                            const std::function<Status(std::span<const PairedTensor>)>& use,
                            const std::function<Status(const OfferedTensor&)>& copy) const {
  std::vector<bool> seen(number_.size());
  DRIFTLESS_RETURN_IF_ERROR(weights.visit([&](std::span<const OfferedTensor> offered) -> Status {
    std::vector<PairedTensor> batch;
    for (const auto& [number, data, memory] : offered) {
      if (number >= number_.size()) {
        return error(StatusCode::kInvalidArgument, "the source offered tensor number ", number,
                     " of ", number_.size());
      }
      const std::string& name = offered_[number].name;
      if (seen[number]) {
        return error(StatusCode::kInvalidArgument, "the source offered tensor '", name, "' twice");
      }
      seen[number] = true;
      if (memory != MemoryKind::kHost && options_.device == nullptr) {
        return error(StatusCode::kUnsupported, "tensor '", name,
                     "' lies on a GPU, and this publisher compares in host memory: set `snapshot` "
                     "to pinned, device or none");
      }
      if (copies_.contains(static_cast<std::uint32_t>(number))) {
        DRIFTLESS_RETURN_IF_ERROR(copy({number, data, memory}));
      }
      if (number_[number] == kNotOurs) continue;
      batch.push_back({number_[number], data, memory});
    }
    return use(batch);
  }));
  const auto missing = std::ranges::find(seen, false);
  if (missing == seen.end()) return {};
  return error(StatusCode::kInvalidArgument, "the source ended without tensor '",
               offered_[static_cast<std::size_t>(missing - seen.begin())].name, "'");
}

RankMessage PublisherRank::produce(const LeaderMessage& plan, WeightSource& weights,
                                   const Deadline& deadline) {
  PayloadContext made =
      context({plan.version, PublicationKind::kVersion}, plan.base_version, plan.full);
  made.dense_above_units = static_cast<std::uint64_t>(options_.full_above_density *
                                                      static_cast<double>(layout_.total_units()));
  TensorDigests copies;
  RankMessage mine = live_ ? produce_live(made, deadline, copies)
                           : write_payload(made, deadline, [&](const AddBatch& add) {
                               return visit(weights, add, [&](const OfferedTensor& copy) {
                                 return digest_copy(copy, copies);
                               });
                             });
  mine.copies = std::move(copies);
  add_kept_copies(mine);
  return mine;
}

// Leader: what becomes of the version.
LeaderMessage PublisherRank::conclude(const LeaderMessage& plan,
                                      Result<std::vector<RankMessage>> ranks,
                                      const Deadline& deadline) {
  const PublicationId id{plan.version, PublicationKind::kVersion};
  LeaderMessage outcome;
  outcome.verdict = Verdict::kAbort;
  if (!ranks.ok()) {
    outcome.status =
        note_fence(ranks.status()).with_context(concat(to_string(id), " was not published"));
    return outcome;
  }
  bool dense = false, needs_full = false;
  for (const RankMessage& rank : *ranks) {
    outcome.changed_units += rank.findings.changed_units;
    dense = dense || rank.findings.dense;
    needs_full = needs_full || rank.needs_full;
    outcome.notes.insert(outcome.notes.end(), rank.notes.begin(), rank.notes.end());
  }
  const double density =
      layout_.total_units() == 0
          ? 0
          : static_cast<double>(outcome.changed_units) / static_cast<double>(layout_.total_units());
  if (!plan.full && (needs_full || dense || density > options_.full_above_density)) {
    outcome.verdict = Verdict::kRedoFull;
    outcome.notes.push_back(
        needs_full ? concat(to_string(id), ": layout ", to_string(options_.layout),
                            " cannot carry a whole tensor among changes: sent in full")
                   : concat(to_string(id), ": ", dense ? "more than " : "", percent(density),
                            " of the units changed, above full_above_density (",
                            percent(options_.full_above_density), "): sent in full"));
    const Status dropped = road_.abort();
    outcome.status = note_fence(road_.begin(id, deadline));
    return outcome;
  }
  outcome.status = check_copies(*ranks).with_context(concat(to_string(id), " was not published"));
  if (outcome.status.ok()) seal(plan, *ranks, outcome, deadline);
  return outcome;
}

void PublisherRank::seal(const LeaderMessage& plan, std::vector<RankMessage>& ranks,
                         LeaderMessage& outcome, const Deadline& deadline) {
  const PublicationId id{plan.version, PublicationKind::kVersion};
  bool doubt = false;
  outcome.status =
      seal_publication(id, plan.base_version, plan.full, ranks, deadline, outcome, doubt);
  if (!outcome.status.ok()) {
    outcome.verdict = doubt ? Verdict::kDoubt : Verdict::kAbort;
    outcome.status = outcome.status.with_context(
        concat(to_string(id), doubt ? ": nobody can say whether it is published; the next publish "
                                      "finds out"
                                    : " was not published"));
    return;
  }
  outcome.verdict = Verdict::kCommit;
  chain_bytes_ += outcome.wire_bytes;
  choose_anchor(plan, outcome, deadline);
}

bool PublisherRank::anchor_wanted() {
  const Result<std::vector<ReceiverReport>> receivers = road_.receivers();
  return receivers.ok() && std::ranges::any_of(*receivers, [&](const ReceiverReport& report) {
           // One past its version serves it; who asked may be gone without a further word.
           const bool served = newest_anchor_ && *newest_anchor_ > report.version;
           if (report.proof != kAnchorWanted || served) return false;
           const Result<ReceiverNeeds> needs = parse_needs(report.needs, report.id);
           return !needs.ok() || needs->run.is_zero() || needs->run == id_.run;
         });
}

bool PublisherRank::anchor_due(std::uint64_t version) {
  return anchor_requested_ || (options_.anchor_every > 0 && version % options_.anchor_every == 0) ||
         (options_.anchor_by_size && chain_bytes_ > layout_.total_bytes()) || anchor_wanted();
}

void PublisherRank::choose_anchor(const LeaderMessage& plan, LeaderMessage& outcome,
                                  const Deadline& deadline) {
  const std::uint64_t version = plan.version;
  if (anchors_among_versions()) {
    if (!plan.full) return;
    newest_anchor_ = version;
    chain_bytes_ = 0;
    anchor_requested_ = false;
    return;
  }
  if (!anchor_due(version)) return;
  const Status begun = note_fence(road_.begin({version, PublicationKind::kAnchor}, deadline));
  outcome.anchor = begun.ok();
  if (begun.ok()) return;
  anchor_requested_ = true;  // at the next version, then
  outcome.notes.push_back(
      concat("the anchor of version ", version, " was put off: ", begun.message()));
}

// The snapshot is the version.
void PublisherRank::commit(std::uint64_t version, const TensorDigests& changed,
                           const Digest& digest) {
  id_.version = version;
  for (const auto& [tensor, after] : changed) {
    part_digest_ += after - std::exchange(tensor_digests_[tensor], after);
  }
  digest_ = digest;
  undo_.clear();
  mirror_undo_.clear();
  needs_full_ = options_.device != nullptr && !options_.device->commit().ok();
  if (live_) live_->commit();
}

// The snapshot is what the receivers have, again; if that cannot be, the next version is full.
void PublisherRank::take_back(bool full) {
  if (options_.device != nullptr) options_.device->abort();
  undo_.roll_back(host_kernels(), snapshot_);
  mirror_undo_.roll_back(host_kernels(), mirror_);
  // Without a snapshot nothing was written over but the mirror.
  if (full && (!live_ || mirrored_)) needs_full_ = true;
}

void PublisherRank::prune(std::vector<std::string>& notes) {
  if (options_.keep_versions == 0 || !newest_anchor_ || id_.version <= options_.keep_versions) {
    return;
  }
  std::uint64_t limit = std::min(*newest_anchor_, id_.version - options_.keep_versions);
  // What stands for the anchor is a version, and stays.
  if (anchors_among_versions() && limit == *newest_anchor_ && limit > 0) --limit;
  if (limit == 0) return;
  const Result<std::vector<PublicationId>> removed = road_.prune(limit);
  if (!removed.ok()) notes.push_back(concat("pruning: ", removed.status().message()));
}

}  // namespace driftless
