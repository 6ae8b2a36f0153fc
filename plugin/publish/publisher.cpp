// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher.h"

#include <algorithm>
#include <exception>

#include "core/stopwatch.h"
#include "plugin/publish/publisher_opening.h"
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
    : rank_(std::make_unique<RankState>(options, group, road, history)) {}

Publisher::~Publisher() = default;

Result<std::unique_ptr<Publisher>> Publisher::open(const PublisherOptions& options, Group& group,
                                                   SendRoad& road, ReceiveRoad* history,
                                                   WeightSource& base, WeightSource* live) {
  try {
    const Deadline deadline = Deadline::after(options.deadline);
    std::unique_ptr<Publisher> rank(new Publisher(options, group, road, history));
    WeightSource& weights = live != nullptr ? *live : base;
    DRIFTLESS_ASSIGN_OR_RETURN(const bool anchor,
                               PublisherOpening(*rank->rank_).open(base, weights, deadline));
    if (anchor) DRIFTLESS_RETURN_IF_ERROR(rank->publish_first_anchor());
    return rank;
  } catch (const std::exception& caught) {
    return error(StatusCode::kNoSpace, "opening the publisher: ", caught.what());
  }
}

// Receivers without a base wait for this anchor, so its failure is an error here.
Status Publisher::publish_first_anchor() {
  const Status anchored = add_anchor(rank_->notes);
  if (anchored.ok() || !all_ranks_know_) return anchored;
  DRIFTLESS_ASSIGN_OR_RETURN(const bool over, rank_->use_fallback());
  return over ? publish_anchor() : anchored;
}

const WeightLayout& Publisher::layout() const { return rank_->run.layout; }
VersionId Publisher::version() const { return rank_->run.id; }
const Digest& Publisher::digest() const { return rank_->run.digest; }
bool Publisher::resumed() const { return rank_->resumed; }
const std::vector<std::string>& Publisher::notes() const { return rank_->notes; }

Result<PublishReport> Publisher::publish(WeightSource& weights, std::optional<std::uint64_t> step) {
  if (step && *step >= Group::kStepLimit) {
    return error(StatusCode::kInvalidArgument, "step ", *step, " is too large");
  }
  step_ = step.value_or(kNoStep);
  try {
    if (!rank_->quantized || rank_->live != nullptr) return publish_guarded(weights);
    QuantizingSource quantizing(*rank_->quantized, weights);
    return publish_guarded(quantizing, &weights);
  } catch (const std::exception& caught) {
    // Memory ran out: the store may be unfit for deltas.
    rank_->needs_full = true;
    rank_->store->abandon();
    if (rank_->mirror) rank_->mirror->commit();
    if (rank_->options.device != nullptr) rank_->options.device->abort();
    const Status dropped = rank_->road.abort();
    return error(StatusCode::kNoSpace, "publisher rank ", rank_->group.rank(), ": ", caught.what());
  }
}

Result<PublishReport> Publisher::publish_guarded(WeightSource& weights,
                                                 WeightSource* trainer_weights) {
  rank_->group.next_epoch(step_ == kNoStep ? std::nullopt : std::optional(step_));
  rank_->run.companions[1] = weights.companions_dir();
  if (!observed_) static_cast<void>(observe(weights));  // a failure fails the plan
  const Status ready = *std::exchange(observed_, std::nullopt);
  Result<PublishReport> report = publish_once(ready, weights, trainer_weights);
  if (report.ok() || !all_ranks_know_) return report;
  const Result<bool> over = rank_->use_fallback();
  if (!over.ok()) {
    return error(report.status().code(), report.status().message(), "; ", over.status().message());
  }
  return *over ? publish_once(ready, weights, trainer_weights) : report;
}

Result<PublishReport> Publisher::publish_once(Status ready, WeightSource& weights,
                                              WeightSource* trainer_weights) {
  Stopwatch total;
  Stopwatch watch;
  const Deadline deadline = Deadline::after(rank_->options.deadline);
  all_ranks_know_ = false;
  DRIFTLESS_ASSIGN_OR_RETURN(PlanMessage plan, make_plan(std::move(ready), deadline));
  DRIFTLESS_RETURN_IF_ERROR(measure_blocks(plan, trainer_weights, deadline));
  PublishReport report;
  report.notes = plan.notes;
  report.manifest_publish_ms = watch.lap_ms();
  const PublicationId id{plan.version, PublicationKind::kVersion};
  for (;;) {
    DRIFTLESS_RETURN_IF_ERROR(
        begin_together(rank_->group, rank_->road, id, deadline, all_ranks_know_));
    all_ranks_know_ = false;
    const PayloadMessage mine = produce(plan, weights, deadline);
    report.process_ms += watch.lap_ms();
    report.stages += stages_;
    report.flush_ms = flush_ms_;
    Result<std::vector<PayloadMessage>> ranks = collect(rank_->group, mine, deadline);
    OutcomeMessage outcome;
    if (rank_->leader) {
      const bool in_background = rank_->live != nullptr && rank_->live->in_background();
      outcome = rank_->leader->conclude(plan, std::move(ranks), in_background, deadline);
    }
    const Status delivered = broadcast_message(rank_->group, outcome, deadline);
    const double seal_ms = watch.lap_ms();
    report.seal_ms += seal_ms;
    report.manifest_publish_ms += seal_ms;
    if (!delivered.ok() && !rank_->leader) {
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
      if (!rank_->leader) {  // the leader has begun again
        DRIFTLESS_RETURN_IF_ERROR(rank_->road.abort());
      }
      plan.full = true;
      if (rank_->live != nullptr) {
        DRIFTLESS_RETURN_IF_ERROR(measure_blocks(plan, trainer_weights, deadline));
      }
      continue;
    }
    commit(plan.version, mine.tensor_digests, outcome.digest);
    report.run = rank_->run.id.run;
    report.version = plan.version;
    report.base_version = plan.base_version;
    report.encoding = plan.full ? Encoding::kFull : rank_->run.shape.encoding;
    report.digest = rank_->run.digest;
    report.changed_units = outcome.changed_units;
    report.total_units = rank_->run.layout.total_units();
    report.full_bytes = rank_->run.layout.total_bytes();
    report.delta_bytes = outcome.delta_bytes;
    report.wire_bytes = outcome.wire_bytes;
    if (rank_->leader) report.most_changed = rank_->leader->most_changed();
    if (rank_->mirror) report.mirror_bytes = rank_->mirror->size_bytes();
    if (rank_->live != nullptr) report.live = std::exchange(rank_->live->costs(), {});
    if (outcome.anchor) {
      const Status anchored = add_anchor(report.notes);
      report.anchor = anchored.ok();
      if (!anchored.ok()) {
        report.notes.emplace_back(anchored.message());
        const Result<bool> over = all_ranks_know_ ? rank_->use_fallback() : false;
        if (!over.ok()) report.notes.emplace_back(over.status().message());
      }
    }
    if (rank_->leader && !plan.full) {
      rank_->leader->planner().note({rank_->run.shape.encoding, outcome.changed_units,
                                     rank_->run.layout.total_units(), outcome.wire_bytes,
                                     report.process_ms, report.flush_ms});
    }
    if (rank_->leader) rank_->leader->prune(report.notes);
    report.total_ms = total.lap_ms();
    return report;
  }
}

Status Publisher::give_up(const PlanMessage& plan, const OutcomeMessage& outcome,
                          const PayloadMessage& mine) {
  if (outcome.verdict == Verdict::kDoubt) {
    doubt_ =
        std::make_unique<Doubt>(Doubt{plan.version, mine.tensor_digests, outcome.digest, plan.full,
                                      rank_->leader ? rank_->leader->sealing() : Hash128()});
    return outcome.status;
  }
  const Status dropped = rank_->road.abort();
  take_back(plan.full);
  return outcome.status;
}

void Publisher::resolve_doubt(bool published) {
  if (published) {
    commit(doubt_->version, doubt_->tensor_digests, doubt_->digest);
  } else {
    const Status dropped = rank_->road.abort();
    take_back(doubt_->full);
  }
  doubt_.reset();
}

Result<PlanMessage> Publisher::make_plan(Status ready, const Deadline& deadline) {
  ReadyMessage mine;
  mine.status = std::move(ready);
  mine.version = rank_->run.id.version;
  mine.step = step_;
  mine.doubtful = doubt_ ? doubt_->version : 0;
  mine.needs_full = rank_->needs_full || (doubt_ && doubt_->full);
  const Result<std::vector<ReadyMessage>> ranks = collect(rank_->group, mine, deadline);
  PlanMessage plan;
  plan.status = ranks.status();
  if (rank_->leader && ranks.ok() && doubt_) {  // was its version sealed?
    const PublicationId id{doubt_->version, PublicationKind::kVersion};
    const Result<bool> there = rank_->leader->published(id, doubt_->manifest, deadline);
    plan.status = there.status();
    if (there.ok()) resolve_doubt(*there);
  }
  if (rank_->leader && plan.status.ok()) {
    plan = rank_->leader->plan(*ranks, rank_->needs_full,
                               rank_->live != nullptr && rank_->live->in_background(), deadline);
  }
  PlanMessage agreed = std::move(plan);
  DRIFTLESS_RETURN_IF_ERROR(broadcast_message(rank_->group, agreed, deadline));
  all_ranks_know_ = true;
  DRIFTLESS_RETURN_IF_ERROR(agreed.status);
  Fallback* const fallback = rank_->road.fallback();
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
  if (shape.encoding != rank_->run.shape.encoding) {
    buffers = std::make_unique<PayloadBuffers>(rank_->run.layout, shape.encoding);
  }
  if (shape.cuts != rank_->run.shape.cuts) {
    DRIFTLESS_RETURN_IF_ERROR(rank_->store->recut(shape.cuts));
  }
  std::swap(rank_->run.shape, shape);
  if (buffers) rank_->buffers = std::move(buffers);
  if (rank_->leader) rank_->leader->planner().adopted();
  return agreed;
}

Status Publisher::measure_blocks(const PlanMessage& plan, WeightSource* trainer_weights,
                                 const Deadline& deadline) {
  live_notes_.clear();
  if (trainer_weights != nullptr) measured_ = rank_->quantized->measure(*trainer_weights);
  if (rank_->quantized_live != nullptr) measured_ = prepare_live(plan.full);
  const Status agreed = rank_->agree_on_blocks(measured_, deadline);
  if (!agreed.ok()) {
    if (rank_->leader) static_cast<void>(rank_->road.abort());  // it has begun already
    return agreed.with_context(concat("version ", plan.version, " was not published"));
  }
  if (rank_->quantized_live != nullptr && measured_.ok()) {
    measured_ = rank_->quantized_live->settle(rank_->tensor_digests, live_notes_);
  }
  return {};
}

Status Publisher::prepare_live(bool full) {
  const bool reads =
      publication_format(rank_->options.layout).reads_weights(rank_->run.shape.encoding);
  return rank_->quantized_live->prepare({full, reads, rank_->options.background}, live_notes_);
}

PayloadMessage Publisher::produce(const PlanMessage& plan, WeightSource& weights,
                                  const Deadline& deadline) {
  PayloadContext made =
      rank_->context({plan.version, PublicationKind::kVersion}, plan.base_version, plan.full);
  made.dense_above_units = static_cast<std::uint64_t>(
      rank_->options.full_above_density * static_cast<double>(rank_->run.layout.total_units()));
  const PublicationFormat& format = publication_format(rank_->options.layout);
  Status ready;
  bool needs_full = false;
  std::vector<std::string> notes;
  Stopwatch watch;
  if (rank_->quantized_live != nullptr) {
    notes = std::exchange(live_notes_, {});
  } else if (rank_->live != nullptr) {
    const LiveStore::Version version{plan.full, format.reads_weights(rank_->run.shape.encoding),
                                     rank_->options.background};
    ready = rank_->live->prepare(version, rank_->tensor_digests, notes);
    // The shard of a delta cannot hold whole tensors.
    needs_full = !plan.full && rank_->live->whole_tensors() > 0 && format.delta_shards;
  }
  const double prepare_ms = watch.lap_ms();
  TensorDigests copies;
  ScaleJumps jumps(rank_->options.full_above_density);
  PayloadMessage mine = write_payload(made, deadline, [&](const AddBatch& add) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(measured_);
    DRIFTLESS_RETURN_IF_ERROR(ready);
    const auto compare = [&](std::span<const PairedTensor> batch) {
      if (rank_->quantized && !plan.full && !rank_->options.device) {
        add_scale_changes(*rank_->store, batch, jumps);
      }
      return add(batch);
    };
    if (rank_->live == nullptr) {
      return rank_->offers->visit(
          weights, rank_->options.device != nullptr, compare,
          [&](const OfferedTensor& copy) { return rank_->offers->digest_copy(copy, copies); });
    }
    if (needs_full) return {};
    DRIFTLESS_RETURN_IF_ERROR(rank_->offers->digest_live_copies(copies));
    if (rank_->quantized_live != nullptr && plan.full) {
      return rank_->quantized_live->each_batch(add);
    }
    return add(rank_->store->offer());
  });
  stages_.compare_ms += prepare_ms;
  mine.needs_full = needs_full;
  mine.notes = std::move(notes);
  if (auto note = jumps.note(rank_->run.layout, rank_->group.rank(), "")) {
    mine.notes.push_back(*note);
  }
  mine.copies = std::move(copies);
  rank_->offers->add_kept_copies(mine.tensor_digests, rank_->tensor_digests, mine.copies);
  return mine;
}

PayloadMessage Publisher::write_payload(PayloadContext made, const Deadline& deadline,
                                        const std::function<Status(const AddBatch&)>& fill) {
  PayloadMessage mine;
  StageClock clock;
  PartRoad parts_road(rank_->road, clock);
  made.road = &parts_road;
  made.clock = &clock;
  Stopwatch watch;
  BlockMirror::Frames frames;
  PublisherDevice* const device = rank_->options.device.get();
  Result<std::unique_ptr<RankPayload>> payload = make_payload(device, made);
  Result<std::unique_ptr<RankPayload>> blocks = std::unique_ptr<RankPayload>();
  if (rank_->mirror) blocks = make_payload(device, rank_->mirror->block_context(made, frames));
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    if (!rank_->mirror) return (*payload)->add(batch);
    std::vector<PairedTensor> whole, cut;
    for (const PairedTensor& each : batch) {
      (rank_->run.in_blocks[rank_->store->owned(each.number).tensor()] ? cut : whole)
          .push_back(each);
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
  if (rank_->mirror) {
    rank_->mirror->write(made, blocks.ok() ? blocks->get() : nullptr, frames, deadline, mine);
  }
  stages_ = clock.finished(watch.lap_ms());
  const bool full = made.frame.encoding == Encoding::kFull;
  mine.tensor_digests = digests_after(mine.findings, full, rank_->tensor_digests);
  for (const std::uint32_t tensor : rank_->store->owned_tensors()) {
    if (rank_->run.owners[tensor] == 1 || mine.findings.digests.contains(tensor)) continue;
    mine.unchanged.push_back({tensor, rank_->tensor_digests[tensor]});
  }
  if (!full) mine.digest = rank_->part_digest;
  for (const auto& [tensor, digest] : mine.findings.digests) mine.digest += digest;
  mine.most_changed = most_changed(mine.findings.units);
  const PublicationFormat& format = publication_format(rank_->options.layout);
  if (rank_->live != nullptr && mine.status.ok() && !mine.findings.dense) {
    const LiveStore::Version version{full, format.reads_weights(rank_->run.shape.encoding)};
    mine.status =
        rank_->quantized_live != nullptr
            ? rank_->quantized_live->prove_read(version)
            : rank_->live->prove_read(version, rank_->tensor_digests, mine.tensor_digests);
    stages_.compare_ms += watch.lap_ms();
  }
  // flush() may synchronize all ranks: abort() reports the failure of this rank to the others. If
  // the layout has shards, the leader flushes after it has added the index.
  if (mine.status.ok() && !(rank_->leader && format.sharded(full))) {
    static_cast<void>(watch.lap_ms());
    Result<std::vector<PartReceipt>> parts = flush_road(rank_->road, rank_->options, deadline);
    flush_ms_ = watch.lap_ms();
    stages_.send_ms += flush_ms_;
    mine.status = parts.status();
    if (parts.ok()) mine.parts = std::move(*parts);
  }
  if (!mine.status.ok()) {
    const Status dropped = rank_->road.abort();
  }
  return mine;
}

Status Publisher::add_anchor(std::vector<std::string>& notes) {
  const Deadline deadline = Deadline::after(rank_->options.deadline);
  const PublicationId id{rank_->run.id.version, PublicationKind::kAnchor};
  DRIFTLESS_RETURN_IF_ERROR(
      begin_together(rank_->group, rank_->road, id, deadline, all_ranks_know_));
  const PayloadMessage mine =
      write_payload(rank_->context(id, id.version, true), deadline, [&](const AddBatch& add) {
        return rank_->quantized_live != nullptr ? rank_->quantized_live->each_batch(add)
                                                : add(rank_->store->offer());
      });
  Result<std::vector<PayloadMessage>> ranks = collect(rank_->group, mine, deadline);
  OutcomeMessage outcome;
  outcome.status = ranks.status();
  if (ranks.ok() && rank_->leader) {
    bool doubt = false;
    outcome.status = rank_->leader->seal({id, id.version, true}, *ranks, deadline, outcome, doubt);
  }
  Status status = broadcast_message(rank_->group, outcome, deadline);
  all_ranks_know_ = status.ok();
  if (status.ok()) status = outcome.status;
  if (!status.ok()) {
    const Status dropped = rank_->road.abort();
    // The mirror already holds the present weights, which receivers do not have.
    rank_->needs_full = rank_->needs_full || (rank_->live != nullptr && rank_->mirror != nullptr);
    return status.with_context(concat("the ", to_string(id), " was not published"));
  }
  notes.insert(notes.end(), outcome.notes.begin(), outcome.notes.end());
  if (rank_->leader) rank_->leader->anchored(id.version);
  return {};
}

Status Publisher::publish_anchor() {
  const Deadline deadline = Deadline::after(rank_->options.deadline);
  rank_->group.next_epoch();
  if (rank_->live != nullptr) rank_->live->end_background();
  StatusMessage begun;
  if (rank_->leader) {
    begun.status =
        rank_->leader->begin({rank_->run.id.version, PublicationKind::kAnchor}, deadline);
  }
  DRIFTLESS_RETURN_IF_ERROR(broadcast_checked(rank_->group, begun, deadline).status());
  std::vector<std::string> notes;
  return add_anchor(notes);
}

void Publisher::request_anchor() {
  if (rank_->leader) rank_->leader->request_anchor();
}

// Makes the store the committed version.
void Publisher::commit(std::uint64_t version, const std::vector<TensorDigest>& changed,
                       const Digest& digest) {
  rank_->run.id.version = version;
  for (const auto& [tensor, after] : changed) {
    rank_->part_digest += after - std::exchange(rank_->tensor_digests[tensor], after);
  }
  rank_->run.digest = digest;
  rank_->store->commit();
  if (rank_->mirror) rank_->mirror->commit();
  rank_->needs_full = rank_->options.device != nullptr && !rank_->options.device->commit().ok();
}

// Restores the receivers' weights in the store; if that is impossible, the next version is full.
void Publisher::take_back(bool full) {
  if (rank_->options.device != nullptr) rank_->options.device->abort();
  rank_->store->roll_back();
  if (rank_->mirror) rank_->mirror->roll_back();
  // Without a snapshot, only the mirror was overwritten.
  if (full && (rank_->live == nullptr || rank_->mirror)) rank_->needs_full = true;
}

Status Publisher::capture(std::span<const NewTensor> values, void* stream) {
  if (rank_->live == nullptr) {
    return error(StatusCode::kInvalidArgument,
                 "capture() is for publishers without a snapshot: set snapshot: none");
  }
  Stopwatch watch;
  const bool in_doubt = rank_->live->in_doubt();
  rank_->live->doubt(true);  // set first, in case memory runs out
  const Result<std::vector<NewValues>> blocks = rank_->live_offers().new_values(values);
  const Status captured = blocks.ok() ? rank_->live->capture(*blocks, stream) : blocks.status();
  rank_->live->doubt(in_doubt || !captured.ok());
  rank_->live->costs().capture_ms += watch.lap_ms();
  return captured;
}

void Publisher::doubt() {
  if (rank_->live != nullptr) rank_->live->doubt(true);
}

Status Publisher::observe(WeightSource& weights, void* stream, bool in_background) {
  const auto look = [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(rank_->live_offers().check_source(weights));
    if (rank_->live == nullptr) return {};
    DRIFTLESS_RETURN_IF_ERROR(rank_->live_offers().visit(
        weights, rank_->options.device != nullptr,
        [&](std::span<const PairedTensor> batch) -> Status {
          for (const PairedTensor& each : batch) {
            DRIFTLESS_RETURN_IF_ERROR(rank_->live->check(each));
          }
          return {};
        },
        [&](const OfferedTensor& copy) { return rank_->live_offers().look_at_copy(copy); }));
    DRIFTLESS_RETURN_IF_ERROR(rank_->live->observe(stream, in_background));
    return rank_->offers->observe_copies(rank_->options.device.get());
  };
  observed_ = look();
  return *observed_;
}

}  // namespace driftless
