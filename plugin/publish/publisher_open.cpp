// SPDX-License-Identifier: Apache-2.0
// Publisher::open(): the ranks agree on a layout, seed their stores, and start or resume a run.
#include <algorithm>
#include <set>

#include "core/parallel.h"
#include "plugin/publish/block_mirror.h"
#include "plugin/publish/live_store.h"
#include "plugin/publish/publisher_leader.h"
#include "plugin/publish/quantized_store.h"
#include "plugin/publish/rank_offers.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {
namespace {

// A target over the store; other ranks have the rest of the weights.
Result<std::unique_ptr<MappedTarget>> target_of(const WeightStore& store, const RunState& run,
                                                unsigned threads) {
  const std::span<const OwnedTensor> owned = store.owned();
  if (std::ranges::find(run.in_blocks, true) == run.in_blocks.end()) {
    std::vector<std::byte*> data(run.layout.size());
    for (std::uint32_t i = 0; i < owned.size(); ++i) data[owned[i].tensor()] = store.data(i);
    return make_memory_target(run.layout, data, VersionId{}, threads, store.memory());
  }
  MappedParts parts;
  parts.layout = run.layout;
  parts.memory = store.memory();
  for (std::uint32_t i = 0; i < owned.size(); ++i) {
    if (owned[i].place().units == 0) continue;
    WeightMap map;
    map.tensor = owned[i].tensor();
    map.data = store.data(i);
    map.unit_bytes = unit_bytes(store.spec(i).dtype);
    DRIFTLESS_ASSIGN_OR_RETURN(map.map, map_of(owned[i].place(), store.spec(i).units()));
    parts.maps.push_back(std::move(map));
  }
  MappedOptions options;
  options.initial = VersionId{};
  options.initial_digest = run.base_digest;  // of all ranks; the store has a part of the weights
  options.threads = threads;
  return make_mapped_target(std::move(parts), options);
}

// Follows the road from the base to `version`, as a receiver would, with the store as target.
Status catch_up(const WeightStore& store, const RunState& run, ReceiveRoad* history, unsigned rank,
                unsigned threads, std::uint64_t version, const Deadline& deadline) {
  if (version == 0) return {};
  if (history == nullptr) {
    return error(StatusCode::kInvalidArgument, "publisher rank ", rank,
                 " has no way to read the versions on the road");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<MappedTarget> target,
                             target_of(store, run, threads));
  ReceiverOptions options;
  options.id = concat("publisher-", rank);
  options.threads = threads;
  options.fetch_deadline = deadline.remaining() / 2;  // the rest is for an anchor
  options.proof.every = 0;  // only this process can write here, and all of it is summed at the end
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Receiver> receiver,
                             Receiver::open(options, *history, *target, deadline));
  bool again = false;
  while (target->state().id.version < version) {
    const Result<bool> next = receiver->stage(deadline);
    // This rank may lack a block, or a part of one, that decoding needs. Try once more: there may
    // be an anchor that leads past this version.
    if (next.status().code() == StatusCode::kMismatch && !std::exchange(again, true)) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, next);
    again = false;
    if (!staged) return deadline.check(concat("reading version ", version, " back"));
    DRIFTLESS_RETURN_IF_ERROR(receiver->commit().status());
  }
  return receiver->leave();
}

// The most bytes that a full version of this rank takes: its weights, and what frames add.
std::uint64_t full_version_bytes(const WeightStore& store) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < store.owned().size(); ++i) {
    bytes += framed_bytes(store.size_bytes(i), store.spec(i).name);
  }
  return bytes;
}

// kUnsupported, with a way out, if something here needs a snapshot.
Status check_quantized_live(const PublisherOptions& options, SendRoad& road,
                            const QuantizedWeights* quantized, const AssemblyMessage& agreed) {
  const char* const instead = ": set snapshot: host";
  if (road.fallback() != nullptr) {
    return error(StatusCode::kUnsupported,
                 "road.peer.fallback: without a snapshot a quantized version is not made again for "
                 "another road",
                 instead, ", or leave the fallback out");
  }
  if (quantized != nullptr && quantized->as().int4_group > 0) {
    return error(StatusCode::kUnsupported,
                 "the base has groups in INT4, and without a snapshot only FP8 blocks are followed",
                 instead);
  }
  if (!publication_format(options.layout).takes_blocks) {
    return error(StatusCode::kUnsupported, "layout ", to_string(options.layout),
                 " is made from whole codes and scales, and without a snapshot there are none",
                 instead, ", or publish frames");
  }
  if (agreed.copied.empty()) return {};
  return error(StatusCode::kUnsupported, agreed.notes.front(),
               "; without a snapshot a quantized tensor has one owner: leave it to others on all "
               "ranks but one, or set snapshot: host");
}

}  // namespace

Result<std::unique_ptr<Publisher>> Publisher::open(const PublisherOptions& options, Group& group,
                                                   SendRoad& road, ReceiveRoad* history,
                                                   WeightSource& base, WeightSource* live) {
  try {
    const Deadline deadline = Deadline::after(options.deadline);
    std::unique_ptr<Publisher> rank(new Publisher(options, group, road, history));
    group.next_epoch();
    DRIFTLESS_RETURN_IF_ERROR(rank->use_fallback().status());  // if the first road failed
    Status ready = rank->open_quantized(base);
    WeightSource& weights = live != nullptr ? *live : base;
    if (rank->quantized_) {
      QuantizedBase quantized(*rank->quantized_, base);
      DRIFTLESS_RETURN_IF_ERROR(rank->open_ranks(quantized, weights, std::move(ready), deadline));
    } else {
      DRIFTLESS_RETURN_IF_ERROR(rank->open_ranks(base, weights, std::move(ready), deadline));
    }
    return rank;
  } catch (const std::exception& caught) {
    return error(StatusCode::kNoSpace, "opening the publisher: ", caught.what());
  }
}

Status Publisher::open_ranks(WeightSource& base, WeightSource& live, Status ready,
                             const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(assemble(base, live, std::move(ready), deadline));
  Status fits;
  if (options_.mode == UpdateMode::kFull) {
    fits = road_.check_version_size(full_version_bytes(*store_));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const bool over, use_fallback());  // it may take larger versions
  if (over) fits = {};
  DRIFTLESS_RETURN_IF_ERROR(seed(base, live, std::move(fits), deadline));
  if (live_ != nullptr) DRIFTLESS_RETURN_IF_ERROR(compare_with_base(base, deadline));
  return start_or_resume(deadline);
}

Status Publisher::open_quantized(const WeightSource& trainer_weights) {
  const QuantizeSettings& settings = options_.quantize;
  if (settings.scheme == QuantizeScheme::kNone || !options_.quantize_rule.empty()) return {};
  if (options_.base_checkpoint.empty()) {
    if (settings.scheme == QuantizeScheme::kAuto) return {};
    return error(StatusCode::kInvalidArgument,
                 "quantize.scheme: the publisher was not given the base checkpoint that has the "
                 "scales");
  }
  FileSystem& fs = posix_file_system();
  Result<Checkpoint> base = Checkpoint::open(fs, options_.base_checkpoint);
  // It may lie on the leader's host only; the leader then reports the error.
  if (!base.ok() && settings.scheme == QuantizeScheme::kAuto) return {};
  DRIFTLESS_RETURN_IF_ERROR(base.status());
  quantized_base_ = std::make_unique<Checkpoint>(std::move(*base));
  DRIFTLESS_ASSIGN_OR_RETURN(
      quantized_, QuantizedWeights::make(fs, *quantized_base_, trainer_weights, settings, threads_,
                                         options_.device.get()));
  if (!quantized_) quantized_base_.reset();
  if (!quantized_ || quantized_->as().int4_group == 0 || options_.device == nullptr) return {};
  return error(StatusCode::kUnsupported,
               "the base has groups in INT4, which are made in host memory, and a GPU uses this "
               "snapshot: set snapshot: host");
}

// Collective, without a snapshot of codes and scales: finds how the weights differ from the base.
Status Publisher::compare_with_base(WeightSource& base, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(agree_on_blocks(deadline));
  StatusMessage mine;
  if (quantized_live_ != nullptr) mine.status = quantized_live_->compare(base);
  if (options_.quantize_rule.empty()) return mine.status;
  const StatusMessage all{collect(group_, mine, deadline).status()};
  return broadcast_checked(group_, all, deadline).status();
}

Status Publisher::make_live_store(std::vector<OwnedTensor> owned, const WeightSource& live) {
  const LiveStore::Options options{options_.capture_bytes, options_.sweep_every, threads_,
                                   group_.rank()};
  if (!quantized_) {
    auto made =
        std::make_unique<LiveStore>(run_.layout, std::move(owned), options_.device.get(), options);
    live_ = made.get();
    store_ = std::move(made);
    return {};
  }
  std::map<std::string, TensorSpec> tensors;
  for (const TensorSpec& tensor : live.tensors()) tensors[tensor.name] = tensor;
  std::vector<TensorSpec> specs;
  for (auto& [name, tensor] : tensors) specs.push_back(std::move(tensor));
  DRIFTLESS_ASSIGN_OR_RETURN(WeightLayout layout, WeightLayout::make(std::move(specs)));
  trainer_layout_ = std::make_unique<WeightLayout>(std::move(layout));
  trainer_offers_ = std::make_unique<RankOffers>();
  DRIFTLESS_RETURN_IF_ERROR(trainer_offers_->open(live).status);
  QuantizedStore::Parts parts;
  DRIFTLESS_ASSIGN_OR_RETURN(parts.local, trainer_offers_->owned_parts(
                                              AssemblyMessage(), *trainer_layout_, group_.rank()));
  parts.owned = std::move(owned);
  parts.numbers = offers_->numbers();
  parts.trainer_layout = trainer_layout_.get();
  parts.trainer_numbers = trainer_offers_->numbers();
  parts.device = options_.device.get();
  auto made = std::make_unique<QuantizedStore>(
      run_.layout, *quantized_, std::move(parts),
      QuantizedStore::Options{options, options_.full_above_density});
  quantized_live_ = made.get();
  live_ = &made->live();
  store_ = std::move(made);
  trainer_offers_->use(*live_);
  return {};
}

Status Publisher::assemble(WeightSource& base, const WeightSource& live, Status ready,
                           const Deadline& deadline) {
  OfferMessage mine = offers_->open(base);
  if (!ready.ok()) mine.status = std::move(ready);
  if (quantized_) mine.quantize_rule = quantized_->as().rule_name();
  mine.shares_blocks = quantized_ && quantized_->shares();
  const Result<std::vector<OfferMessage>> ranks = collect(group_, mine, deadline);
  run_.companions[0] = base.companions_dir();
  AssemblyMessage assembly;
  assembly.status = ranks.status();
  if (leader_ && ranks.ok()) assembly = leader_->assemble(*ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const AssemblyMessage agreed,
                             broadcast_checked(group_, std::move(assembly), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(run_.layout, WeightLayout::make(agreed.tensors));
  run_.shape.cuts = agreed.cuts;
  if (options_.quantize_rule.empty()) options_.quantize_rule = agreed.quantize_rule;
  shares_blocks_ = agreed.shares_blocks;
  for (const std::vector<std::uint32_t>& owners : agreed.owners) {
    run_.owners.push_back(std::set<std::uint32_t>(owners.begin(), owners.end()).size());
    run_.in_blocks.push_back(owners.size() > 1);
  }
  notes_ = road_.notes();
  notes_.insert(notes_.end(), agreed.notes.begin(), agreed.notes.end());
  const PublicationFormat& format = publication_format(options_.layout);
  // All ranks reach the same result.
  if (const auto wide =
          find_wide_positions(format, options_.encoding, run_.layout, options_.position_limit)) {
    notes_.push_back(concat("tensor '", wide->tensor->name, "' is too large for the positions of '",
                            info(options_.encoding).name, "': versions are published in '",
                            info(wide->encoding).name, "'"));
    options_.encoding = run_.shape.encoding = wide->encoding;
  }
  use_buffers();
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<OwnedTensor> owned,
                             offers_->owned_parts(agreed, run_.layout, group_.rank()));
  PublisherDevice* const device = options_.device.get();
  if (options_.keep_snapshot) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        store_, SnapshotStore::create(run_.layout, std::move(owned), threads_, device));
  } else {
    if (!options_.quantize_rule.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(check_quantized_live(options_, road_, quantized_.get(), agreed));
    }
    DRIFTLESS_RETURN_IF_ERROR(make_live_store(std::move(owned), live));
  }
  offers_->use(*store_);
  if (format.takes_blocks || std::ranges::find(run_.in_blocks, true) == run_.in_blocks.end()) {
    return {};
  }
  DRIFTLESS_ASSIGN_OR_RETURN(mirror_, BlockMirror::open(group_, run_, threads_));
  notes_.push_back(concat("layout ", to_string(options_.layout), " has whole tensors: publisher ",
                          "rank 0 keeps a mirror of the ", mirror_->tensors(),
                          " that are offered in blocks, ", mirror_->size_bytes(),
                          " bytes of host memory"));
  return {};
}

void Publisher::use_buffers() {
  buffers_ = std::make_unique<PayloadBuffers>(run_.layout, run_.shape.encoding);
}

void Publisher::set_digests(std::vector<Digest> digests) {
  tensor_digests_ = std::move(digests);
  part_digest_ = Digest();
  for (const Digest& digest : tensor_digests_) part_digest_ += digest;
}

Status Publisher::open_live(WeightSource& live) {
  DRIFTLESS_RETURN_IF_ERROR(live_offers().check_source(live));
  if (options_.device != nullptr && !publication_format(options_.layout).takes_blocks) {
    return error(
        StatusCode::kUnsupported, "layout ", to_string(options_.layout),
        " is made from tensors in host memory, and these lie on a GPU, without a snapshot: "
        "set snapshot: pinned, or publish frames");
  }
  if (run_.shape.encoding == Encoding::kCompact && !codes_compact(options_)) {
    run_.shape.encoding = Encoding::kDeltas;  // even if no receiver announces its needs
    use_buffers();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<LivePlace> places,
                             live_offers().find_places(live, options_.device != nullptr));
  if (quantized_live_ == nullptr) return live_->open(std::move(places));
  return quantized_live_->open(std::move(places));
}

Status Publisher::seed(WeightSource& base, WeightSource& live, Status ready,
                       const Deadline& deadline) {
  BaseMessage mine;
  mine.status = std::move(ready);
  if (mine.status.ok() && live_ != nullptr) mine.status = open_live(live);
  std::vector<Digest> digests(run_.layout.size());
  // Without a snapshot the base is only read for its digests.
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    for (const PairedTensor& offered : batch) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, store_->digest(offered));
      digests[store_->owned(offered.number).tensor()] += digest;
    }
    return {};
  };
  const auto write = [&](std::span<const PairedTensor> batch) {
    const unsigned threads = options_.device == nullptr ? threads_ : 1;
    return parallel_for(batch.size(), threads, [&](std::size_t task, unsigned) {
      return store_->write(batch[task].number, batch[task].new_data);
    });
  };
  const auto use = [&](std::span<const PairedTensor> batch) {
    return live_ != nullptr ? add(batch) : write(batch);
  };
  if (mine.status.ok()) {
    mine.status = offers_->visit(
        base, options_.device != nullptr, use,
        [&](const OfferedTensor& copy) { return offers_->digest_copy(copy, mine.copies); });
  }
  if (mine.status.ok() && live_ == nullptr) {
    Result<std::vector<Digest>> held = store_->digests();
    mine.status = held.status();
    if (held.ok()) digests = std::move(*held);
  }
  set_digests(std::move(digests));
  if (mine.status.ok()) {
    for (const std::uint32_t tensor : store_->owned_tensors()) {
      mine.tensor_digests.push_back({tensor, tensor_digests_[tensor]});
    }
    offers_->add_kept_copies(mine.tensor_digests, tensor_digests_, mine.copies);
    if (leader_) mine.status = leader_->find_unpublished(notes_);
  }
  mine.digest = part_digest_;
  const Result<std::vector<BaseMessage>> ranks = collect(group_, mine, deadline);
  DigestMessage sum;
  sum.status = ranks.status();
  if (leader_ && ranks.ok()) sum = leader_->add_up(*ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const DigestMessage agreed, broadcast_checked(group_, sum, deadline));
  run_.base_digest = run_.digest = agreed.digest;
  return {};
}

// Collective, once: gathers the blocks of all ranks. A full version would also bring them.
Status Publisher::seed_mirror(Status ready, const Deadline& deadline) {
  if (!mirror_) return ready;
  BlockMirror::Frames frames;
  const PayloadContext made = context({run_.id.version, PublicationKind::kVersion}, 0, true);
  const Result<std::unique_ptr<RankPayload>> payload =
      make_payload(options_.device.get(), mirror_->block_context(made, frames));
  if (ready.ok()) ready = payload.status();
  if (ready.ok()) ready = (*payload)->add(store_->offer(&run_.in_blocks));
  if (ready.ok()) ready = (*payload)->finish();
  return mirror_->seed(std::move(ready), frames, deadline);
}

Status Publisher::start_or_resume(const Deadline& deadline) {
  StartMessage found;
  if (leader_) found = leader_->find_start(deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(StartMessage start,
                             broadcast_checked(group_, std::move(found), deadline));
  DigestMessage mine;
  if (live_ == nullptr) {
    mine.status =
        catch_up(*store_, run_, history_, group_.rank(), threads_, start.version, deadline);
  }
  // Without a snapshot the road's version is not read: compare its digest with that of the present
  // weights.
  if (mine.status.ok() && (live_ != nullptr || start.version > 0)) {
    Result<std::vector<Digest>> held = store_->digests();
    mine.status = held.status();
    for (std::size_t i = 0; held.ok() && i < held->size(); ++i) mine.digest += (*held)[i];
    if (held.ok() && start.version > 0) set_digests(std::move(*held));
  } else {
    mine.digest = part_digest_;
  }
  mine.status = seed_mirror(mine.status, deadline);
  const Result<std::vector<DigestMessage>> ranks = collect(group_, mine, deadline);
  start.status = ranks.status();
  if (leader_ && ranks.ok()) {
    Digest held;
    for (const DigestMessage& rank : *ranks) held += rank.digest;
    leader_->start(held, live_ != nullptr, start, deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const StartMessage agreed,
                             broadcast_checked(group_, std::move(start), deadline));
  run_.id = {agreed.run, agreed.version};
  run_.digest = agreed.digest;
  resumed_ = agreed.resume;
  if (agreed.otherwise) {
    needs_full_ = agreed.version > 0 || mirror_ != nullptr;  // the mirror has these weights
    if (quantized_live_ == nullptr || needs_full_) live_->doubt(true);
    notes_.push_back(concat("the weights are not those of version ", agreed.version,
                            needs_full_
                                ? ", and there is no snapshot of it: the next version goes out in "
                                  "full"
                                : ": the next version carries what differs"));
  }
  if (quantized_live_ != nullptr && agreed.version > 0) quantized_live_->forget_base();
  if (agreed.resume) {
    notes_.push_back(concat("resumed run ", to_hex(agreed.run), " at version ", agreed.version));
  }
  if (leader_ && leader_->highest_number() > run_.id.version) {
    notes_.push_back(concat("versions up to ", leader_->highest_number(), " were published before ",
                            "and are not there any more: the next is version ",
                            leader_->highest_number() + 1, ", in full"));
  }
  // Receivers without a base wait for this anchor, so its failure is an error here.
  if (!agreed.anchor) return {};
  const Status anchored = add_anchor(notes_);
  if (anchored.ok() || !all_ranks_know_) return anchored;
  DRIFTLESS_ASSIGN_OR_RETURN(const bool over, use_fallback());
  return over ? publish_anchor() : anchored;
}

}  // namespace driftless
