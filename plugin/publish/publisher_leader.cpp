// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher_leader.h"

#include <algorithm>
#include <cmath>

#include "collectives/present_announcement.h"
#include "formats/records.h"

namespace driftless {
namespace {

// The ranks' offers of one tensor.
struct Offers {
  const TensorSpec* spec = nullptr;
  std::vector<TensorBox> boxes;
  std::vector<std::uint32_t> ranks;    // of each box
  std::vector<std::uint32_t> numbers;  // likewise: the number among the rank's offers
};

// Adds an offer. If another rank, or this one, has offered the same box before, returns that offer;
// the new one is dropped.
Result<std::optional<RankOffer>> add_offer(const TensorSpec& tensor, const TensorBox& box,
                                           const RankOffer& offer, Offers& offers) {
  const auto& [rank, number] = offer;
  if (offers.spec == nullptr) offers.spec = &tensor;
  if (*offers.spec != tensor) {
    return error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is ",
                 info(tensor.dtype).name, " ", tensor.shape_string(), " on publisher rank ", rank,
                 ", but ", info(offers.spec->dtype).name, " ", offers.spec->shape_string(),
                 " on rank ", offers.ranks.front());
  }
  for (std::size_t i = 0; i < offers.boxes.size(); ++i) {
    if (offers.boxes[i] == box) return std::optional(RankOffer(offers.ranks[i], offers.numbers[i]));
  }
  offers.boxes.push_back(box);
  offers.ranks.push_back(rank);
  offers.numbers.push_back(number);
  return std::optional<RankOffer>();
}

// Adds to runs of offers (AssemblyMessage::dropped).
void add_to_runs(const RankOffer& offer, std::vector<std::array<std::uint32_t, 3>>& runs) {
  if (!runs.empty() && runs.back()[0] == offer.first &&
      runs.back()[1] + runs.back()[2] == offer.second) {
    ++runs.back()[2];
  } else {
    runs.push_back({offer.first, offer.second, 1});
  }
}

// "'a', 'b', 'c' and 4 more"
std::string some_of(std::span<const UnpublishedTensor> tensors) {
  constexpr std::size_t kNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(tensors.size(), kNamed); ++i) {
    text += concat(i > 0 ? ", '" : "'", tensors[i].spec.name, "'");
  }
  return tensors.size() <= kNamed ? text : concat(text, " and ", tensors.size() - kNamed, " more");
}

Status check_offers(const Offers& offers) {
  if (offers.boxes.size() == 1 && offers.boxes.front().whole()) return {};
  if (offers.boxes.size() > kMaxBlocksOfTensor) {
    return error(StatusCode::kWrongLayout, "tensor '", offers.spec->name, "' is offered in ",
                 offers.boxes.size(), " blocks, at most ", kMaxBlocksOfTensor, " are allowed");
  }
  const Status covered = check_covers(*offers.spec, offers.boxes);
  if (covered.ok()) return {};
  return error(StatusCode::kWrongLayout, covered.message(),
               ", as the publisher ranks offer them; each element must be offered by one rank");
}

// All ranks that quantize must use one rule.
Status add_rule(const std::string& rule, unsigned rank, std::string& all) {
  if (rule.empty() || rule == all) return {};
  if (all.empty()) {
    all = rule;
    return {};
  }
  return error(StatusCode::kInvalidArgument, "publisher rank ", rank, " quantizes by the rule ",
               rule, ", others by ", all, ": give all ranks the same quantize.rule");
}

// Ok if each tensor that a rank leaves to others is offered by another one.
Status check_left(const std::vector<OfferMessage>& ranks,
                  const std::map<std::string_view, Offers>& offered) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::string& name : ranks[rank].left) {
      if (offered.contains(name)) continue;
      return error(StatusCode::kWrongLayout, "tensor '", name, "' is held by publisher rank ", rank,
                   ", which leaves it to others, and no rank publishes it: a rank that holds it ",
                   "must own it");
    }
  }
  return {};
}

// Does not wait for one: the announcement exists now or not at all.
Result<std::optional<std::string>> fetch_announcement(ReceiveRoad* history,
                                                      const Deadline& deadline) {
  if (history == nullptr) return std::optional<std::string>();
  return present_announcement(*history, deadline);
}

// The digest of a version that is on the road, or of its anchor.
Result<Digest> digest_of(ReceiveRoad& history, std::uint64_t version, const Deadline& deadline) {
  Result<std::string> text = history.fetch_manifest({version, PublicationKind::kVersion}, deadline);
  if (text.status().code() == StatusCode::kNotFound) {
    text = history.fetch_manifest({version, PublicationKind::kAnchor}, deadline);
  }
  if (!text.ok()) return text.status();
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest,
                             parse_manifest(*text, concat("manifest of version ", version)));
  return manifest.digest;
}

std::string percent(double share) {
  const auto tenths = static_cast<std::uint64_t>(std::llround(share * 1000));
  return concat(tenths / 10, ".", tenths % 10, " %");
}

std::string step_name(std::uint64_t step) {
  return step == kNoStep ? std::string("no step") : concat("step ", step);
}

// All ranks must publish the same step.
Status check_steps(const std::vector<ReadyMessage>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].step == ranks[0].step) continue;
    return error(StatusCode::kInvalidArgument, "publisher rank ", rank, " publishes ",
                 step_name(ranks[rank].step), ", publisher rank 0 ", step_name(ranks[0].step),
                 ": no version is made of different steps");
  }
  return {};
}

}  // namespace

PublisherLeader::PublisherLeader(const PublisherOptions& options, unsigned ranks, SendRoad& road,
                                 ReceiveRoad* history, const RunState& run, unsigned threads)
    : options_(options),
      format_(publication_format(options.layout)),
      ranks_(ranks),
      road_(road),
      history_(history),
      run_(run),
      threads_(threads),
      planner_(options, run, threads) {}

// Gives every element of a tensor one owner: the lowest rank that offers its block.
AssemblyMessage PublisherLeader::assemble(const std::vector<OfferMessage>& ranks) {
  AssemblyMessage message;
  std::vector<std::vector<TensorBox>> boxes;
  std::map<std::string_view, Offers> all;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const OfferMessage& from = ranks[rank];
    message.shares_blocks = message.shares_blocks || from.shares_blocks;
    message.status = add_rule(from.quantize_rule, rank, message.quantize_rule);
    if (!message.status.ok()) return message;
    for (std::uint32_t i = 0; i < from.tensors.size(); ++i) {
      const TensorBox box = i < from.boxes.size() ? from.boxes[i] : TensorBox();
      const Result<std::optional<RankOffer>> same =
          add_offer(from.tensors[i], box, {rank, i}, all[from.tensors[i].name]);
      message.status = same.status();
      if (!same.ok()) return message;
      if (!*same) continue;
      add_to_runs({rank, i}, message.dropped);
      kept_for_.emplace(RankOffer(rank, i), **same);
      copied_names_.emplace(**same, from.tensors[i].name);
    }
  }
  for (const auto& [kept, name] : copied_names_) message.copied.push_back(kept);
  if (!copied_names_.empty()) {
    const auto& [kept, name] = *copied_names_.begin();
    message.notes.push_back(concat(copied_names_.size(), " tensors or blocks, '", name,
                                   "' among them, are held by several publisher ranks: the lowest ",
                                   "rank publishes each; for this one it is rank ", kept.first));
  }
  message.status = check_left(ranks, all);
  if (!message.status.ok()) return message;
  for (auto& [name, offers] : all) {
    message.status = check_offers(offers);
    if (!message.status.ok()) return message;
    message.tensors.push_back(*offers.spec);
    message.owners.push_back(std::move(offers.ranks));
    boxes.push_back(std::move(offers.boxes));
  }
  Result<std::vector<BlockCut>> cuts = planner_.open(message.tensors, std::move(boxes));
  message.status = cuts.status();
  if (cuts.ok()) message.cuts = std::move(*cuts);
  return message;
}

MaximaMessage PublisherLeader::agree(const Result<std::vector<MaximaMessage>>& ranks) {
  if (ranks.ok()) return maxima_.merge(*ranks);
  MaximaMessage failed;
  failed.status = ranks.status();
  return failed;
}

DigestMessage PublisherLeader::add_up(const std::vector<BaseMessage>& ranks) {
  DigestMessage sum;
  std::vector<TensorDigests> copies;
  base_tensor_digests_.assign(run_.layout.size(), Digest());
  for (const BaseMessage& rank : ranks) {
    sum.digest += rank.digest;
    copies.push_back(rank.copies);
    for (const auto& [tensor, digest] : rank.tensor_digests) {
      if (tensor < run_.layout.size()) base_tensor_digests_[tensor] += digest;
    }
  }
  sum.status = check_copies(copies, false);
  return sum;
}

Status PublisherLeader::check_copies(const std::vector<TensorDigests>& ranks,
                                     bool in_background) const {
  std::map<RankOffer, Digest> digests;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [offer, digest] : ranks[rank]) digests[{rank, offer}] = digest;
  }
  for (const auto& [dropped, kept] : kept_for_) {
    const auto one = digests.find(dropped), other = digests.find(kept);
    if (one == digests.end() || other == digests.end()) {
      return error(StatusCode::kInternal, "tensor '", copied_names_.at(kept),
                   "': a publisher rank did not report the digest of its copy");
    }
    if (one->second == other->second) continue;
    return error(
        StatusCode::kMismatch, "tensor '", copied_names_.at(kept),
        "' has other bits on publisher rank ", dropped.first, " than on rank ", kept.first,
        ": if they are different tensors, publish them under different names; if they are ",
        "copies, bring them in step",
        in_background ? "; or they were written since publish(wait=False) was called" : "");
  }
  return {};
}

Status PublisherLeader::find_unpublished(std::vector<std::string>& notes) {
  const std::string& path = options_.base_checkpoint;
  if (path.empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint base, Checkpoint::open(posix_file_system(), path));
  DRIFTLESS_RETURN_IF_ERROR(
      base.keep_only(run_.layout).with_context("the base checkpoint and what is published"));
  for (const OtherTensor& other : base.others()) {
    const DigestTensorKey key = digest_tensor_key(other.spec.name);
    const TensorBytes bytes{{0, base.view(other).bytes()}, &key};
    unpublished_.push_back({other.spec, digest_on_host(std::span(&bytes, 1), threads_)});
  }
  if (unpublished_.empty()) return {};
  const std::string text = concat(path, ": no publisher rank holds ", unpublished_.size(),
                                  " of its tensors: ", some_of(unpublished_));
  if (options_.complete) {
    return error(StatusCode::kWrongLayout, text, "; all must be published (complete)");
  }
  notes.push_back(concat(text, ": receivers keep them as they are in the base, and prove it"));
  return {};
}

StartMessage PublisherLeader::find_start(const Deadline& deadline) {
  StartMessage start;
  start.run = random_hash128();
  start.digest = run_.digest;
  // Uses only half of the time: the other ranks wait for the result until the deadline.
  const auto text = fetch_announcement(history_, deadline.sooner(deadline.remaining() / 2));
  if (text.ok() && !text->has_value()) {
    if (options_.resume == ResumeMode::kRequire) {
      start.status = error(StatusCode::kNotFound,
                           "there is no run to resume on this road; set resume: auto to start one");
    }
    return start;
  }
  start.status = text.ok() ? resume(**text, start, deadline) : text.status();
  return start;
}

Status PublisherLeader::resume(const std::string& announcement, StartMessage& start,
                               const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const RunInfo found,
      parse_run_info(announcement, "the announcement of the run on this road"));
  DRIFTLESS_RETURN_IF_ERROR(check_run(found));
  found_ = announcement;
  if (found.tensor_digests.empty()) base_tensor_digests_.clear();  // announced again without them
  unpublished_ = found.unpublished;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> there, history_->list(deadline));
  for (const PublicationId& id : there) {
    if (id.kind == PublicationKind::kVersion) start.version = id.version;
    if (id.kind == PublicationKind::kAnchor) newest_anchor_ = id.version;
  }
  start.version = std::max(start.version, newest_anchor_.value_or(0));
  DRIFTLESS_ASSIGN_OR_RETURN(highest_number_, road_.highest_number());
  highest_number_ = std::max(highest_number_, found.used_numbers);
  announcement_.used_numbers = found.used_numbers;  // the new announcement keeps them
  start.run = found.run;
  start.resume = true;
  if (start.version > 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(start.digest, digest_of(*history_, start.version, deadline));
  }
  return {};
}

// That of a resumed run stays as it was: a road with a fallback has added the job's name.
std::string PublisherLeader::announcement_text() const {
  std::string text = run_info_to_json(announcement_);
  const auto found = parse_run_info(found_, "the announcement of the run on this road");
  return found.ok() && run_info_to_json(*found) == text ? found_ : text;
}

Status PublisherLeader::check_run(const RunInfo& found) const {
  constexpr std::string_view kElsewhere =
      "; publish somewhere else, or remove the run there once no process needs it";
  if (options_.resume == ResumeMode::kNever) {
    return error(StatusCode::kAlreadyExists, "the road holds run ", to_hex(found.run),
                 " already, and resume is never", kElsewhere);
  }
  const Status same = run_.layout.check_same(found.layout, "this trainer", "the run on the road");
  if (!same.ok()) return error(same.code(), same.message(), kElsewhere);
  if (found.base_digest != run_.base_digest) {
    return error(StatusCode::kWrongBase, "the run on the road started from weights with digest ",
                 to_hex(found.base_digest), ", the base given here has ", to_hex(run_.base_digest),
                 kElsewhere);
  }
  if (found.quantize_rule != options_.quantize_rule) {
    const auto named = [](const std::string& rule) {
      return rule.empty() ? std::string("is not quantized") : concat("is quantized by ", rule);
    };
    return error(StatusCode::kAlreadyExists, "the run on the road ", named(found.quantize_rule),
                 ", what this trainer publishes ", named(options_.quantize_rule),
                 " (quantize.rule)", kElsewhere);
  }
  if (!options_.base_checkpoint.empty() && !found.unpublished.empty() &&
      found.unpublished != unpublished_) {
    return error(StatusCode::kWrongBase, "the run on the road started from a checkpoint ",
                 "whose unpublished tensors are ", some_of(found.unpublished), "; ",
                 options_.base_checkpoint, " has other ones, or other bits", kElsewhere);
  }
  return {};
}

void PublisherLeader::start(const Digest& held, bool live, StartMessage& start,
                            const Deadline& deadline) {
  start.otherwise = live && held != start.digest;
  if (!live && held != start.digest) {
    start.status = error(StatusCode::kMismatch, "version ", start.version,
                         " as read back from the road has digest ", to_hex(held), ", expected ",
                         to_hex(start.digest), "; start a new run on an empty road");
    return;
  }
  announcement_ = {start.run,
                   run_.layout,
                   run_.base_digest,
                   ranks_,
                   base_tensor_digests_,
                   unpublished_,
                   options_.quantize_rule,
                   announcement_.used_numbers};
  start.status = road_.announce(announcement_text(), deadline);
  // If anchors are versions themselves, a resumed run has a full version already, or gets one.
  const bool among = format_.anchors_among_versions && start.version > 0;
  start.anchor = start.status.ok() && options_.first_anchor && !newest_anchor_ && !among;
  if (start.otherwise && start.anchor) {  // these weights differ from that version
    start.anchor = false;
    anchor_requested_ = true;
  }
  if (start.anchor) {
    start.status = road_.begin({start.version, PublicationKind::kAnchor}, deadline);
  }
}

Result<bool> PublisherLeader::published(const PublicationId& id, const Hash128& manifest,
                                        const Deadline& deadline) {
  if (!fenced_.ok()) return fenced_;
  const Result<std::optional<Hash128>> there = road_.published(id, deadline);
  if (!there.ok()) return note_fence(there.status());
  if (!there->has_value()) return false;
  if (**there == manifest) return true;
  return note_fence(error(StatusCode::kWrongRun, to_string(id),
                          " is there with a manifest of hash ", to_hex(**there),
                          ", this publisher's has ", to_hex(manifest)));
}

Status PublisherLeader::note_fence(Status status) {
  if (status.code() != StatusCode::kWrongRun) return status;
  const auto text = fetch_announcement(history_, Deadline::after(std::chrono::milliseconds(0)));
  const bool there = text.ok() && text->has_value();
  const auto now = there ? parse_run_info(**text, "the announcement on the road")
                         : Result<RunInfo>(error(StatusCode::kNotFound, "no announcement"));
  const std::string carries =
      now.ok() ? concat("the road carries run ", to_hex(now->run), " now",
                        now->run == run_.id.run ? ", the same, by another publisher" : "")
               : std::string("it is unknown which run the road carries now");
  fenced_ = error(StatusCode::kWrongRun, "run ", to_hex(run_.id.run),
                  " of this trainer is fenced at ", "version ", run_.id.version,
                  ": another publisher has taken its road over, and ", carries,
                  ". Stop one of the two trainers, then start this one again: ", status.message());
  return fenced_;
}

FallbackMessage PublisherLeader::use_fallback(const std::vector<std::string>& troubles,
                                              const Deadline& deadline) {
  FallbackMessage message;
  Status failed;
  for (std::size_t rank = 0; rank < troubles.size(); ++rank) {
    const Result<StatusMessage> trouble = parse_message<StatusMessage>(troubles[rank]);
    add_failure(failed, trouble.ok() ? trouble->status : trouble.status(), rank);
  }
  if (failed.ok()) return message;
  std::optional<std::string> announcement;
  if (!announcement_.run.is_zero()) {
    announcement_.used_numbers = std::max(run_.id.version, highest_number_);
    announcement = run_info_to_json(announcement_);
  }
  message.status = road_.fallback()->use(failed.message(), announcement, deadline);
  if (!message.status.ok()) return message;
  message.reason = fallback_ = failed.message();
  // Earlier versions are on the other road, which may not serve them.
  bridging_ = announcement.has_value();
  newest_anchor_.reset();
  chain_bytes_ = 0;
  return message;
}

PlanMessage PublisherLeader::plan(const std::vector<ReadyMessage>& ranks, bool needs_full,
                                  bool in_background, const Deadline& deadline) {
  PlanMessage plan;
  plan.status = fenced_;
  plan.fallback = fallback_;
  for (std::size_t rank = 1; plan.status.ok() && rank < ranks.size(); ++rank) {
    const bool ahead = ranks[rank].doubtful == run_.id.version && ranks[rank].doubtful != 0;
    if (ahead || ranks[rank].version == run_.id.version) continue;
    plan.status = error(StatusCode::kInternal, "publisher rank ", rank, " is at version ",
                        ranks[rank].version, ", the leader at ", run_.id.version,
                        ": restart all publisher ranks together");
  }
  if (plan.status.ok()) plan.status = check_steps(ranks);
  if (!plan.status.ok()) return plan;
  plan.base_version = run_.id.version;
  plan.version = std::max(run_.id.version, highest_number_) + 1;
  plan.full = options_.mode == UpdateMode::kFull || needs_full ||
              highest_number_ > run_.id.version || (bridging_ && !in_background) ||
              std::ranges::any_of(ranks, &ReadyMessage::needs_full) ||
              (format_.anchors_among_versions && anchor_due(plan.version));
  plan.digest = run_.digest;
  plan.shape = planner_.plan(road_.receivers(), plan.notes);
  plan.status = begin({plan.version, PublicationKind::kVersion}, deadline);
  return plan;
}

Status PublisherLeader::begin(const PublicationId& id, const Deadline& deadline) {
  return fenced_.ok() ? note_fence(road_.begin(id, deadline)) : fenced_;
}

OutcomeMessage PublisherLeader::conclude(const PlanMessage& plan,
                                         Result<std::vector<PayloadMessage>> ranks,
                                         bool in_background, const Deadline& deadline) {
  const PublicationId id{plan.version, PublicationKind::kVersion};
  OutcomeMessage outcome;
  outcome.verdict = Verdict::kAbort;
  if (!ranks.ok()) {
    outcome.status =
        note_fence(ranks.status()).with_context(concat(to_string(id), " was not published"));
    return outcome;
  }
  bool dense = false, needs_full = false;
  std::vector<TensorDigests> copies;
  changed_.clear();
  for (const PayloadMessage& rank : *ranks) {
    for (const auto& [tensor, units] : rank.most_changed) {
      if (tensor < run_.layout.size()) changed_[tensor] += units;
    }
    outcome.changed_units += rank.findings.changed_units;
    dense = dense || rank.findings.dense;
    needs_full = needs_full || rank.needs_full;
    copies.push_back(rank.copies);
    outcome.notes.insert(outcome.notes.end(), rank.notes.begin(), rank.notes.end());
  }
  const double density = run_.layout.total_units() == 0
                             ? 0
                             : static_cast<double>(outcome.changed_units) /
                                   static_cast<double>(run_.layout.total_units());
  if (!plan.full && (needs_full || dense || density > options_.full_above_density)) {
    outcome.verdict = Verdict::kRedoFull;
    outcome.notes.push_back(
        needs_full ? concat(to_string(id), ": layout ", to_string(options_.layout),
                            " cannot carry a whole tensor among changes: sent in full")
                   : concat(to_string(id), ": ", dense ? "more than " : "", percent(density),
                            " of the weights changed, above full_above_density (",
                            percent(options_.full_above_density), "): sent in full"));
    const Status dropped = road_.abort();
    outcome.status = begin(id, deadline);
    return outcome;
  }
  outcome.status =
      check_copies(copies, in_background).with_context(concat(to_string(id), " was not published"));
  if (outcome.status.ok()) seal_version(plan, *ranks, outcome, deadline);
  return outcome;
}

std::vector<TensorDensity> PublisherLeader::most_changed() const {
  std::vector<TensorDensity> most;
  for (const auto& [number, units] : driftless::most_changed(changed_)) {
    const TensorSpec& tensor = run_.layout[number];
    most.push_back({tensor.name, units, tensor.units()});
  }
  return most;
}

void PublisherLeader::seal_version(const PlanMessage& plan, std::vector<PayloadMessage>& ranks,
                                   OutcomeMessage& outcome, const Deadline& deadline) {
  const PublicationId id{plan.version, PublicationKind::kVersion};
  bool doubt = false;
  outcome.status = seal({id, plan.base_version, plan.full}, ranks, deadline, outcome, doubt);
  if (!outcome.status.ok()) {
    outcome.verdict = doubt ? Verdict::kDoubt : Verdict::kAbort;
    outcome.status = outcome.status.with_context(concat(
        to_string(id), doubt
                           ? ": it is unknown whether it is published; the next publish() finds out"
                           : " was not published"));
    return;
  }
  outcome.verdict = Verdict::kCommit;
  if (std::exchange(bridging_, false) && !plan.full) anchor_requested_ = true;
  chain_bytes_ += outcome.wire_bytes;
  choose_anchor(plan, outcome, deadline);
}

bool PublisherLeader::anchor_wanted() {
  const Result<std::vector<ReceiverReport>> receivers = road_.receivers();
  return receivers.ok() && std::ranges::any_of(*receivers, [&](const ReceiverReport& report) {
           // A newer anchor already serves this receiver, even if it left without another report.
           const bool served = newest_anchor_ && *newest_anchor_ > report.version;
           if (report.proof != kAnchorWanted || served) return false;
           const Result<ReceiverNeeds> needs = parse_needs(report.needs, report.id);
           return !needs.ok() || needs->run.is_zero() || needs->run == run_.id.run;
         });
}

bool PublisherLeader::anchor_due(std::uint64_t version) {
  return anchor_requested_ || (options_.anchor_every > 0 && version % options_.anchor_every == 0) ||
         (options_.anchor_by_size && chain_bytes_ > run_.layout.total_bytes()) || anchor_wanted();
}

void PublisherLeader::choose_anchor(const PlanMessage& plan, OutcomeMessage& outcome,
                                    const Deadline& deadline) {
  const std::uint64_t version = plan.version;
  if (format_.anchors_among_versions) {
    if (!plan.full) return;
    anchored(version);
    return;
  }
  if (!anchor_due(version)) return;
  const Status begun = begin({version, PublicationKind::kAnchor}, deadline);
  outcome.anchor = begun.ok();
  if (begun.ok()) return;
  anchor_requested_ = true;  // at the next version
  outcome.notes.push_back(
      concat("the anchor of version ", version, " was put off: ", begun.message()));
}

void PublisherLeader::anchored(std::uint64_t version) {
  newest_anchor_ = version;
  bridging_ = false;
  chain_bytes_ = 0;
  anchor_requested_ = false;
}

void PublisherLeader::prune(std::vector<std::string>& notes) {
  if (options_.keep_versions == 0 || !newest_anchor_ || run_.id.version <= options_.keep_versions) {
    return;
  }
  std::uint64_t limit = std::min(*newest_anchor_, run_.id.version - options_.keep_versions);
  // The anchor is itself a version here, and stays.
  if (format_.anchors_among_versions && limit == *newest_anchor_ && limit > 0) --limit;
  if (limit == 0) return;
  const Result<std::vector<PublicationId>> removed = road_.prune(limit);
  if (!removed.ok()) notes.push_back(concat("pruning: ", removed.status().message()));
}

}  // namespace driftless
