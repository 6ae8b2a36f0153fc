// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher.h"

#include <algorithm>
#include <exception>

#include "core/stopwatch.h"
#include "plugin/publish/block_mirror.h"
#include "plugin/publish/live_store.h"
#include "plugin/publish/publisher_leader.h"
#include "plugin/publish/quantized_store.h"
#include "plugin/publish/rank_offers.h"
#include "plugin/publish/scale_jumps.h"

namespace driftless {
namespace {

// Begins the publication on all ranks but the leader, which has begun it already. No rank writes
// before all have begun: otherwise a road whose flush() synchronizes the ranks would wait for a
// rank that could not begin, and a leader that aborts at once would remove what other ranks are
// still reading. Not ok: this rank has dropped the publication. `all_know`: whether all ranks
// received the failure, and drop the publication, too.
Status begin_together(Group& group, SendRoad& road, const PublicationId& id,
                      const Deadline& deadline, bool& all_know) {
  if (group.size() == 1) return {};
  StatusMessage mine;
  if (!group.leads()) mine.status = road.begin(id, deadline);
  StatusMessage go{collect(group, mine, deadline).status()};
  Status status = broadcast_message(group, go, deadline);
  all_know = status.ok();
  if (all_know) status = go.status;
  if (status.ok()) return {};
  const Status dropped = road.abort();
  return status.with_context(concat(to_string(id), " was not published"));
}

// The digests of a rank's tensors after a version with these findings.
TensorDigests digests_after(const PayloadFindings& findings, bool full,
                            const std::vector<Digest>& before) {
  TensorDigests after;
  after.reserve(findings.digests.size());
  for (const auto& [tensor, digest] : findings.digests) {
    after.push_back({tensor, full ? digest : before[tensor] + digest});
  }
  return after;
}

}  // namespace

// A version that this rank may or may not have sealed.
struct Publisher::Doubt {
  std::uint64_t version = 0;
  TensorDigests tensor_digests;  // of this rank's tensors that the version changes
  Digest digest;                 // of all weights; known to the leader
  bool full = false;
  Hash128 manifest;  // hash of the manifest to be sealed; known to the leader
};

Publisher::Publisher(const PublisherOptions& options, Group& group, SendRoad& road,
                     ReceiveRoad* history)
    : options_(options),
      group_(group),
      road_(road),
      history_(history),
      threads_(options.threads > 0 ? options.threads : default_threads()),
      offers_(std::make_unique<RankOffers>()) {
  run_.shape.encoding = options.encoding;
  if (group.leads()) {
    leader_ =
        std::make_unique<PublisherLeader>(options_, group.size(), road, history, run_, threads_);
  }
}

Publisher::~Publisher() = default;

Result<PublishReport> Publisher::publish(WeightSource& weights, std::optional<std::uint64_t> step) {
  if (step && *step >= Group::kStepLimit) {
    return error(StatusCode::kInvalidArgument, "step ", *step, " is too large");
  }
  step_ = step.value_or(kNoStep);
  try {
    if (!quantized_ || live_ != nullptr) return publish_guarded(weights);
    QuantizingSource quantizing(*quantized_, weights);
    return publish_guarded(quantizing, &weights);
  } catch (const std::exception& caught) {
    // Memory ran out: the store may be unfit for deltas.
    needs_full_ = true;
    store_->abandon();
    if (mirror_) mirror_->commit();
    if (options_.device != nullptr) options_.device->abort();
    const Status dropped = road_.abort();
    return error(StatusCode::kNoSpace, "publisher rank ", group_.rank(), ": ", caught.what());
  }
}

Result<PublishReport> Publisher::publish_guarded(WeightSource& weights,
                                                 WeightSource* trainer_weights) {
  group_.next_epoch(step_ == kNoStep ? std::nullopt : std::optional(step_));
  run_.companions[1] = weights.companions_dir();
  if (!observed_) static_cast<void>(observe(weights));  // a failure fails the plan
  const Status ready = *std::exchange(observed_, std::nullopt);
  Result<PublishReport> report = publish_once(ready, weights, trainer_weights);
  if (report.ok() || !all_ranks_know_) return report;
  const Result<bool> over = use_fallback();
  if (!over.ok()) {
    return error(report.status().code(), report.status().message(), "; ", over.status().message());
  }
  return *over ? publish_once(ready, weights, trainer_weights) : report;
}

Result<bool> Publisher::use_fallback() {
  Fallback* const fallback = road_.fallback();
  if (fallback == nullptr || fallback->used()) return false;
  const Deadline deadline = Deadline::after(options_.deadline);
  const Result<std::vector<std::string>> troubles =
      group_.gather(to_message(StatusMessage{fallback->trouble()}), deadline);
  FallbackMessage message;
  message.status = troubles.status();
  if (leader_ && troubles.ok()) message = leader_->use_fallback(*troubles, deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const FallbackMessage agreed,
                             broadcast_checked(group_, std::move(message), deadline));
  if (agreed.reason.empty()) return false;
  DRIFTLESS_RETURN_IF_ERROR(fallback->use(agreed.reason, std::nullopt, deadline));
  return true;
}

Result<PublishReport> Publisher::publish_once(Status ready, WeightSource& weights,
                                              WeightSource* trainer_weights) {
  Stopwatch total;
  Stopwatch watch;
  const Deadline deadline = Deadline::after(options_.deadline);
  all_ranks_know_ = false;
  DRIFTLESS_ASSIGN_OR_RETURN(PlanMessage plan, make_plan(std::move(ready), deadline));
  DRIFTLESS_RETURN_IF_ERROR(measure_blocks(plan, trainer_weights, deadline));
  PublishReport report;
  report.notes = plan.notes;
  report.manifest_publish_ms = watch.lap_ms();
  const PublicationId id{plan.version, PublicationKind::kVersion};
  for (;;) {
    DRIFTLESS_RETURN_IF_ERROR(begin_together(group_, road_, id, deadline, all_ranks_know_));
    all_ranks_know_ = false;
    const PayloadMessage mine = produce(plan, weights, deadline);
    report.process_ms += watch.lap_ms();
    report.stages += stages_;
    report.flush_ms = flush_ms_;
    Result<std::vector<PayloadMessage>> ranks = collect(group_, mine, deadline);
    OutcomeMessage outcome;
    if (leader_) {
      const bool in_background = live_ != nullptr && live_->in_background();
      outcome = leader_->conclude(plan, std::move(ranks), in_background, deadline);
    }
    const Status delivered = broadcast_message(group_, outcome, deadline);
    const double seal_ms = watch.lap_ms();
    report.seal_ms += seal_ms;
    report.manifest_publish_ms += seal_ms;
    if (!delivered.ok() && !leader_) {
      outcome.verdict = Verdict::kDoubt;  // the leader has decided, but the verdict is unknown
      outcome.status = delivered.with_context(concat("the outcome of version ", plan.version));
    } else if (!delivered.ok()) {
      outcome.notes.push_back(concat("a publisher rank did not receive the outcome of version ",
                                     plan.version, ": ", delivered.message()));
    }
    all_ranks_know_ = delivered.ok() && outcome.verdict != Verdict::kDoubt;
    if (!outcome.status.ok()) return give_up(plan, outcome, mine);
    report.notes.insert(report.notes.end(), outcome.notes.begin(), outcome.notes.end());
    if (outcome.verdict == Verdict::kRedoFull) {
      take_back(plan.full);
      all_ranks_know_ = false;
      if (!leader_) DRIFTLESS_RETURN_IF_ERROR(road_.abort());  // the leader has begun again
      plan.full = true;
      if (live_ != nullptr) {
        DRIFTLESS_RETURN_IF_ERROR(measure_blocks(plan, trainer_weights, deadline));
      }
      continue;
    }
    commit(plan.version, mine.tensor_digests, outcome.digest);
    report.run = run_.id.run;
    report.version = plan.version;
    report.base_version = plan.base_version;
    report.encoding = plan.full ? Encoding::kFull : run_.shape.encoding;
    report.digest = run_.digest;
    report.changed_units = outcome.changed_units;
    report.total_units = run_.layout.total_units();
    report.full_bytes = run_.layout.total_bytes();
    report.delta_bytes = outcome.delta_bytes;
    report.wire_bytes = outcome.wire_bytes;
    if (leader_) report.most_changed = leader_->most_changed();
    if (mirror_) report.mirror_bytes = mirror_->size_bytes();
    if (live_ != nullptr) report.live = std::exchange(live_->costs(), {});
    if (outcome.anchor) {
      const Status anchored = add_anchor(report.notes);
      report.anchor = anchored.ok();
      if (!anchored.ok()) {
        report.notes.emplace_back(anchored.message());
        const Result<bool> over = all_ranks_know_ ? use_fallback() : false;
        if (!over.ok()) report.notes.emplace_back(over.status().message());
      }
    }
    if (leader_ && !plan.full) {
      leader_->planner().note({run_.shape.encoding, outcome.changed_units,
                               run_.layout.total_units(), outcome.wire_bytes, report.process_ms,
                               report.flush_ms});
    }
    if (leader_) leader_->prune(report.notes);
    report.total_ms = total.lap_ms();
    return report;
  }
}

Status Publisher::give_up(const PlanMessage& plan, const OutcomeMessage& outcome,
                          const PayloadMessage& mine) {
  if (outcome.verdict == Verdict::kDoubt) {
    doubt_ = std::make_unique<Doubt>(Doubt{plan.version, mine.tensor_digests, outcome.digest,
                                           plan.full, leader_ ? leader_->sealing() : Hash128()});
    return outcome.status;
  }
  const Status dropped = road_.abort();
  take_back(plan.full);
  return outcome.status;
}

void Publisher::resolve_doubt(bool published) {
  if (published) {
    commit(doubt_->version, doubt_->tensor_digests, doubt_->digest);
  } else {
    const Status dropped = road_.abort();
    take_back(doubt_->full);
  }
  doubt_.reset();
}

Result<PlanMessage> Publisher::make_plan(Status ready, const Deadline& deadline) {
  ReadyMessage mine;
  mine.status = std::move(ready);
  mine.version = run_.id.version;
  mine.step = step_;
  mine.doubtful = doubt_ ? doubt_->version : 0;
  mine.needs_full = needs_full_ || (doubt_ && doubt_->full);
  const Result<std::vector<ReadyMessage>> ranks = collect(group_, mine, deadline);
  PlanMessage plan;
  plan.status = ranks.status();
  if (leader_ && ranks.ok() && doubt_) {  // was its version sealed?
    const PublicationId id{doubt_->version, PublicationKind::kVersion};
    const Result<bool> there = leader_->published(id, doubt_->manifest, deadline);
    plan.status = there.status();
    if (there.ok()) resolve_doubt(*there);
  }
  if (leader_ && plan.status.ok()) {
    plan = leader_->plan(*ranks, needs_full_, live_ != nullptr && live_->in_background(), deadline);
  }
  PlanMessage agreed = std::move(plan);
  DRIFTLESS_RETURN_IF_ERROR(broadcast_message(group_, agreed, deadline));
  all_ranks_know_ = true;
  DRIFTLESS_RETURN_IF_ERROR(agreed.status);
  Fallback* const fallback = road_.fallback();
  if (fallback != nullptr && !agreed.fallback.empty()) {  // the switch may be unknown on this rank
    DRIFTLESS_RETURN_IF_ERROR(fallback->use(agreed.fallback, std::nullopt, deadline));
  }
  all_ranks_know_ = false;
  if (doubt_) {
    doubt_->digest = agreed.digest;
    resolve_doubt(doubt_->version == agreed.base_version);
  }
  // Everything that may throw comes first, so that buffers, cuts and encoding always match.
  VersionShape shape = agreed.shape;
  std::unique_ptr<PayloadBuffers> buffers;
  if (shape.encoding != run_.shape.encoding) {
    buffers = std::make_unique<PayloadBuffers>(run_.layout, shape.encoding);
  }
  if (shape.cuts != run_.shape.cuts) DRIFTLESS_RETURN_IF_ERROR(store_->recut(shape.cuts));
  std::swap(run_.shape, shape);
  if (buffers) buffers_ = std::move(buffers);
  if (leader_) leader_->planner().adopted();
  return agreed;
}

Status Publisher::measure_blocks(const PlanMessage& plan, WeightSource* trainer_weights,
                                 const Deadline& deadline) {
  live_notes_.clear();
  if (trainer_weights != nullptr) measured_ = quantized_->measure(*trainer_weights);
  if (quantized_live_ != nullptr) measured_ = prepare_live(plan.full);
  const Status agreed = agree_on_blocks(deadline);
  if (!agreed.ok()) {
    if (leader_) static_cast<void>(road_.abort());  // it has begun already
    return agreed.with_context(concat("version ", plan.version, " was not published"));
  }
  if (quantized_live_ != nullptr && measured_.ok()) {
    measured_ = quantized_live_->settle(tensor_digests_, live_notes_);
  }
  return {};
}

Status Publisher::prepare_live(bool full) {
  const bool reads = publication_format(options_.layout).reads_weights(run_.shape.encoding);
  return quantized_live_->prepare({full, reads, options_.background}, live_notes_);
}

Status Publisher::agree_on_blocks(const Deadline& deadline) {
  if (quantized_ && !shares_blocks_) quantized_->agree_alone();
  if (!shares_blocks_) return {};
  MaximaMessage mine;
  if (quantized_) mine = quantized_->maxima_to_send();
  mine.status = measured_;
  if (quantized_) quantized_->forget();  // until take_maxima() succeeds
  const Result<std::vector<MaximaMessage>> ranks = collect(group_, mine, deadline);
  MaximaMessage merged;
  if (leader_) merged = leader_->agree(ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const MaximaMessage agreed,
                             broadcast_checked(group_, std::move(merged), deadline));
  if (quantized_) quantized_->take_maxima(agreed);
  return {};
}

PayloadMessage Publisher::produce(const PlanMessage& plan, WeightSource& weights,
                                  const Deadline& deadline) {
  PayloadContext made =
      context({plan.version, PublicationKind::kVersion}, plan.base_version, plan.full);
  made.dense_above_units = static_cast<std::uint64_t>(
      options_.full_above_density * static_cast<double>(run_.layout.total_units()));
  const PublicationFormat& format = publication_format(options_.layout);
  Status ready;
  bool needs_full = false;
  std::vector<std::string> notes;
  Stopwatch watch;
  if (quantized_live_ != nullptr) {
    notes = std::exchange(live_notes_, {});
  } else if (live_ != nullptr) {
    const LiveStore::Version version{plan.full, format.reads_weights(run_.shape.encoding),
                                     options_.background};
    ready = live_->prepare(version, tensor_digests_, notes);
    // The shard of a delta cannot hold whole tensors.
    needs_full = !plan.full && live_->whole_tensors() > 0 && format.delta_shards;
  }
  const double prepare_ms = watch.lap_ms();
  TensorDigests copies;
  ScaleJumps jumps(options_.full_above_density);
  PayloadMessage mine = write_payload(made, deadline, [&](const AddBatch& add) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(measured_);
    DRIFTLESS_RETURN_IF_ERROR(ready);
    const auto compare = [&](std::span<const PairedTensor> batch) {
      if (quantized_ && !plan.full && !options_.device) add_scale_changes(*store_, batch, jumps);
      return add(batch);
    };
    if (live_ == nullptr) {
      return offers_->visit(
          weights, options_.device != nullptr, compare,
          [&](const OfferedTensor& copy) { return offers_->digest_copy(copy, copies); });
    }
    if (needs_full) return {};
    DRIFTLESS_RETURN_IF_ERROR(offers_->digest_live_copies(copies));
    if (quantized_live_ != nullptr && plan.full) return quantized_live_->each_batch(add);
    return add(store_->offer());
  });
  stages_.compare_ms += prepare_ms;
  mine.needs_full = needs_full;
  mine.notes = std::move(notes);
  if (auto note = jumps.note(run_.layout, group_.rank(), "")) mine.notes.push_back(*note);
  mine.copies = std::move(copies);
  offers_->add_kept_copies(mine.tensor_digests, tensor_digests_, mine.copies);
  return mine;
}

PayloadContext Publisher::context(const PublicationId& id, std::uint64_t base_version, bool full) {
  PayloadContext made;
  made.layout = &run_.layout;
  made.store = store_.get();
  made.buffers = buffers_.get();
  made.frame.id = {run_.id.run, id.version};
  made.frame.base_version = base_version;
  made.frame.layout = run_.layout.signature();
  made.frame.encoding = full ? Encoding::kFull : run_.shape.encoding;
  made.frame.rank = group_.rank();
  made.plain = run_.shape.plain;
  made.directory_layout = options_.layout;
  made.checksum = options_.checksum;
  made.buffer_bytes = options_.buffer_bytes;
  made.position_limit = options_.position_limit;
  made.ranks = group_.size() + (mirror_ ? 1 : 0);  // ranks that write, the mirror included
  made.threads = threads_;
  made.background = options_.background;
  return made;
}

PayloadMessage Publisher::write_payload(PayloadContext made, const Deadline& deadline,
                                        const std::function<Status(const AddBatch&)>& fill) {
  PayloadMessage mine;
  StageClock clock;
  PartRoad parts_road(road_, clock);
  made.road = &parts_road;
  made.clock = &clock;
  Stopwatch watch;
  BlockMirror::Frames frames;
  PublisherDevice* const device = options_.device.get();
  Result<std::unique_ptr<RankPayload>> payload = make_payload(device, made);
  Result<std::unique_ptr<RankPayload>> blocks = std::unique_ptr<RankPayload>();
  if (mirror_) blocks = make_payload(device, mirror_->block_context(made, frames));
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    if (!mirror_) return (*payload)->add(batch);
    std::vector<PairedTensor> whole, cut;
    for (const PairedTensor& each : batch) {
      (run_.in_blocks[store_->owned(each.number).tensor()] ? cut : whole).push_back(each);
    }
    DRIFTLESS_RETURN_IF_ERROR((*payload)->add(whole));
    return (*blocks)->add(cut);
  };
  mine.status = payload.ok() ? blocks.status() : payload.status();
  if (mine.status.ok()) mine.status = fill(add);
  clock.filled(watch.lap_ms());
  if (mine.status.ok()) mine.status = (*payload)->finish();
  // After a failure a thread of the payload may still be writing parts and findings: destroying the
  // payload ends it before the road drops the parts, and the findings are not read.
  if (mine.status.ok()) mine.findings = (*payload)->findings();
  if (payload.ok() && !mine.status.ok()) payload->reset();
  if (mirror_) {
    mirror_->write(made, blocks.ok() ? blocks->get() : nullptr, frames, deadline, mine);
  }
  stages_ = clock.finished(watch.lap_ms());
  const bool full = made.frame.encoding == Encoding::kFull;
  mine.tensor_digests = digests_after(mine.findings, full, tensor_digests_);
  for (const std::uint32_t tensor : store_->owned_tensors()) {
    if (run_.owners[tensor] == 1 || mine.findings.digests.contains(tensor)) continue;
    mine.unchanged.push_back({tensor, tensor_digests_[tensor]});
  }
  if (!full) mine.digest = part_digest_;
  for (const auto& [tensor, digest] : mine.findings.digests) mine.digest += digest;
  mine.most_changed = most_changed(mine.findings.units);
  const PublicationFormat& format = publication_format(options_.layout);
  if (live_ != nullptr && mine.status.ok() && !mine.findings.dense) {
    const LiveStore::Version version{full, format.reads_weights(run_.shape.encoding)};
    mine.status = quantized_live_ != nullptr
                      ? quantized_live_->prove_read(version)
                      : live_->prove_read(version, tensor_digests_, mine.tensor_digests);
    stages_.compare_ms += watch.lap_ms();
  }
  // flush() may synchronize all ranks: abort() reports the failure of this rank to the others. If
  // the layout has shards, the leader flushes after it has added the index.
  if (mine.status.ok() && !(leader_ && format.sharded(full))) {
    static_cast<void>(watch.lap_ms());
    Result<std::vector<PartReceipt>> parts = flush_road(road_, options_, deadline);
    flush_ms_ = watch.lap_ms();
    stages_.send_ms += flush_ms_;
    mine.status = parts.status();
    if (parts.ok()) mine.parts = std::move(*parts);
  }
  if (!mine.status.ok()) {
    const Status dropped = road_.abort();
  }
  return mine;
}

Status Publisher::add_anchor(std::vector<std::string>& notes) {
  const Deadline deadline = Deadline::after(options_.deadline);
  const PublicationId id{run_.id.version, PublicationKind::kAnchor};
  DRIFTLESS_RETURN_IF_ERROR(begin_together(group_, road_, id, deadline, all_ranks_know_));
  const PayloadMessage mine =
      write_payload(context(id, id.version, true), deadline, [&](const AddBatch& add) {
        return quantized_live_ != nullptr ? quantized_live_->each_batch(add) : add(store_->offer());
      });
  Result<std::vector<PayloadMessage>> ranks = collect(group_, mine, deadline);
  OutcomeMessage outcome;
  outcome.status = ranks.status();
  if (ranks.ok() && leader_) {
    bool doubt = false;
    outcome.status = leader_->seal({id, id.version, true}, *ranks, deadline, outcome, doubt);
  }
  Status status = broadcast_message(group_, outcome, deadline);
  all_ranks_know_ = status.ok();
  if (status.ok()) status = outcome.status;
  if (!status.ok()) {
    const Status dropped = road_.abort();
    // The mirror already holds the present weights, which receivers do not have.
    needs_full_ = needs_full_ || (live_ != nullptr && mirror_ != nullptr);
    return status.with_context(concat("the ", to_string(id), " was not published"));
  }
  notes.insert(notes.end(), outcome.notes.begin(), outcome.notes.end());
  if (leader_) leader_->anchored(id.version);
  return {};
}

Status Publisher::publish_anchor() {
  const Deadline deadline = Deadline::after(options_.deadline);
  group_.next_epoch();
  if (live_ != nullptr) live_->end_background();
  StatusMessage begun;
  if (leader_) {
    begun.status = leader_->begin({run_.id.version, PublicationKind::kAnchor}, deadline);
  }
  DRIFTLESS_RETURN_IF_ERROR(broadcast_checked(group_, begun, deadline).status());
  std::vector<std::string> notes;
  return add_anchor(notes);
}

void Publisher::request_anchor() {
  if (leader_) leader_->request_anchor();
}

// Makes the store the committed version.
void Publisher::commit(std::uint64_t version, const std::vector<TensorDigest>& changed,
                       const Digest& digest) {
  run_.id.version = version;
  for (const auto& [tensor, after] : changed) {
    part_digest_ += after - std::exchange(tensor_digests_[tensor], after);
  }
  run_.digest = digest;
  store_->commit();
  if (mirror_) mirror_->commit();
  needs_full_ = options_.device != nullptr && !options_.device->commit().ok();
}

// Restores the receivers' weights in the store; if that is impossible, the next version is full.
void Publisher::take_back(bool full) {
  if (options_.device != nullptr) options_.device->abort();
  store_->roll_back();
  if (mirror_) mirror_->roll_back();
  // Without a snapshot, only the mirror was overwritten.
  if (full && (live_ == nullptr || mirror_)) needs_full_ = true;
}

Status Publisher::capture(std::span<const NewTensor> values, void* stream) {
  if (live_ == nullptr) {
    return error(StatusCode::kInvalidArgument,
                 "capture() is for publishers without a snapshot: set snapshot: none");
  }
  Stopwatch watch;
  const bool in_doubt = live_->in_doubt();
  live_->doubt(true);  // set first, in case memory runs out
  const Result<std::vector<NewValues>> blocks = live_offers().new_values(values);
  const Status captured = blocks.ok() ? live_->capture(*blocks, stream) : blocks.status();
  live_->doubt(in_doubt || !captured.ok());
  live_->costs().capture_ms += watch.lap_ms();
  return captured;
}

void Publisher::doubt() {
  if (live_ != nullptr) live_->doubt(true);
}

Status Publisher::observe(WeightSource& weights, void* stream, bool in_background) {
  const auto look = [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(live_offers().check_source(weights));
    if (live_ == nullptr) return {};
    DRIFTLESS_RETURN_IF_ERROR(live_offers().visit(
        weights, options_.device != nullptr,
        [&](std::span<const PairedTensor> batch) -> Status {
          for (const PairedTensor& each : batch) DRIFTLESS_RETURN_IF_ERROR(live_->check(each));
          return {};
        },
        [&](const OfferedTensor& copy) { return live_offers().look_at_copy(copy); }));
    DRIFTLESS_RETURN_IF_ERROR(live_->observe(stream, in_background));
    return offers_->observe_copies(options_.device.get());
  };
  observed_ = look();
  return *observed_;
}

}  // namespace driftless
