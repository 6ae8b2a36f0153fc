// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher_opening.h"

#include <algorithm>
#include <set>

#include "core/parallel.h"
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
                            const AssemblyMessage& agreed) {
  const char* const instead = ": set snapshot: host";
  if (road.fallback() != nullptr) {
    return error(StatusCode::kUnsupported,
                 "road.peer.fallback: without a snapshot a quantized version is not made again for "
                 "another road",
                 instead, ", or leave the fallback out");
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

bool has_all(const WeightLayout& layout, const WeightSource& source) {
  return std::ranges::all_of(source.tensors(), [&](const TensorSpec& tensor) {
    const std::optional<std::uint32_t> at = layout.find(tensor.name);
    return at && layout[*at] == tensor;
  });
}

}  // namespace

Result<bool> PublisherOpening::open(WeightSource& base, WeightSource& live,
                                    const Deadline& deadline) {
  rank_.group.next_epoch();
  DRIFTLESS_RETURN_IF_ERROR(rank_.use_fallback().status());  // if the first road failed
  Status ready = open_quantized(base);
  if (!rank_.quantized) {
    Result<bool> opened = open_ranks(base, live, std::move(ready), deadline);
    rank_.quantized_base.reset();
    return opened;
  }
  QuantizedBase quantized(*rank_.quantized, base);
  return open_ranks(quantized, live, std::move(ready), deadline);
}

Result<bool> PublisherOpening::open_ranks(WeightSource& offered, WeightSource& live, Status ready,
                                          const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(assemble(offered, live, std::move(ready), deadline));
  // A rank of which nothing is quantized knows only now that the run is. Version 0 is the
  // checkpoint there, too, whatever weights the rank offers.
  std::optional<QuantizedBase> kept;
  const bool keeps = rank_.quantized_base && !rank_.quantized &&
                     !rank_.options.quantize_rule.empty() &&
                     has_all(rank_.quantized_base->layout(), offered);
  if (keeps) kept.emplace(*rank_.quantized_base, offered);
  WeightSource& base = kept ? *kept : offered;
  Status fits;
  if (rank_.options.mode == UpdateMode::kFull) {
    fits = rank_.road.check_version_size(full_version_bytes(*rank_.store));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const bool over, rank_.use_fallback());  // it may take larger versions
  if (over) fits = {};
  DRIFTLESS_RETURN_IF_ERROR(seed(base, live, std::move(fits), deadline));
  if (rank_.live != nullptr) DRIFTLESS_RETURN_IF_ERROR(compare_with_base(base, deadline));
  return start_or_resume(deadline);
}

Status PublisherOpening::open_quantized(const WeightSource& trainer_weights) {
  const QuantizeSettings& settings = rank_.options.quantize;
  if (settings.scheme == QuantizeScheme::kNone || !rank_.options.quantize_rule.empty()) return {};
  if (rank_.options.base_checkpoint.empty()) {
    if (settings.scheme == QuantizeScheme::kAuto) return {};
    return error(StatusCode::kInvalidArgument,
                 "quantize.scheme: the publisher was not given the base checkpoint that has the "
                 "scales");
  }
  FileSystem& fs = posix_file_system();
  Result<Checkpoint> base = Checkpoint::open(fs, rank_.options.base_checkpoint);
  // It may lie on the leader's host only; the leader then reports the error.
  if (!base.ok() && settings.scheme == QuantizeScheme::kAuto) return {};
  DRIFTLESS_RETURN_IF_ERROR(base.status());
  rank_.quantized_base = std::make_unique<Checkpoint>(std::move(*base));
  DRIFTLESS_ASSIGN_OR_RETURN(
      rank_.quantized, QuantizedWeights::make(fs, *rank_.quantized_base, trainer_weights, settings,
                                              rank_.threads, rank_.options.device.get()));
  return {};
}

// Collective, without a snapshot of codes and scales: finds how the weights differ from the base.
Status PublisherOpening::compare_with_base(WeightSource& base, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(rank_.agree_on_blocks({}, deadline));
  StatusMessage mine;
  if (rank_.quantized_live != nullptr) mine.status = rank_.quantized_live->compare(base);
  if (rank_.options.quantize_rule.empty()) return mine.status;
  const StatusMessage all{collect(rank_.group, mine, deadline).status()};
  return broadcast_checked(rank_.group, all, deadline).status();
}

Status PublisherOpening::make_live_store(std::vector<OwnedTensor> owned, const WeightSource& live) {
  const LiveStore::Options options{rank_.options.capture_bytes, rank_.options.sweep_every,
                                   rank_.threads, rank_.group.rank()};
  if (!rank_.quantized) {
    auto made = std::make_unique<LiveStore>(rank_.run.layout, std::move(owned),
                                            rank_.options.device.get(), options);
    rank_.live = made.get();
    rank_.store = std::move(made);
    return {};
  }
  std::map<std::string, TensorSpec> tensors;
  for (const TensorSpec& tensor : live.tensors()) tensors[tensor.name] = tensor;
  std::vector<TensorSpec> specs;
  for (auto& [name, tensor] : tensors) specs.push_back(std::move(tensor));
  DRIFTLESS_ASSIGN_OR_RETURN(WeightLayout layout, WeightLayout::make(std::move(specs)));
  rank_.trainer_layout = std::make_unique<WeightLayout>(std::move(layout));
  rank_.trainer_offers = std::make_unique<RankOffers>();
  DRIFTLESS_RETURN_IF_ERROR(rank_.trainer_offers->open(live).status);
  QuantizedStore::Parts parts;
  DRIFTLESS_ASSIGN_OR_RETURN(
      parts.local, rank_.trainer_offers->owned_parts(AssemblyMessage(), *rank_.trainer_layout,
                                                     rank_.group.rank()));
  parts.owned = std::move(owned);
  parts.numbers = rank_.offers->numbers();
  parts.trainer_layout = rank_.trainer_layout.get();
  parts.trainer_numbers = rank_.trainer_offers->numbers();
  parts.device = rank_.options.device.get();
  auto made = std::make_unique<QuantizedStore>(
      rank_.run.layout, *rank_.quantized, std::move(parts),
      QuantizedStore::Options{options, rank_.options.full_above_density});
  rank_.quantized_live = made.get();
  rank_.live = &made->live();
  rank_.store = std::move(made);
  rank_.trainer_offers->use(*rank_.live);
  return {};
}

Status PublisherOpening::assemble(WeightSource& base, const WeightSource& live, Status ready,
                                  const Deadline& deadline) {
  OfferMessage mine = rank_.offers->open(base);
  if (!ready.ok()) mine.status = std::move(ready);
  if (rank_.quantized) mine.quantize_rule = rank_.quantized->as().rule_name();
  mine.shares_blocks = rank_.quantized && rank_.quantized->shares();
  const Result<std::vector<OfferMessage>> ranks = collect(rank_.group, mine, deadline);
  rank_.run.companions[0] = base.companions_dir();
  AssemblyMessage assembly;
  assembly.status = ranks.status();
  if (rank_.leader && ranks.ok()) assembly = rank_.leader->assemble(*ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const AssemblyMessage agreed,
                             broadcast_checked(rank_.group, std::move(assembly), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(rank_.run.layout, WeightLayout::make(agreed.tensors));
  rank_.run.shape.cuts = agreed.cuts;
  if (rank_.options.quantize_rule.empty()) rank_.options.quantize_rule = agreed.quantize_rule;
  rank_.shares_blocks = agreed.shares_blocks;
  for (const std::vector<std::uint32_t>& owners : agreed.owners) {
    rank_.run.owners.push_back(std::set<std::uint32_t>(owners.begin(), owners.end()).size());
    rank_.run.in_blocks.push_back(owners.size() > 1);
  }
  rank_.notes = rank_.road.notes();
  rank_.notes.insert(rank_.notes.end(), agreed.notes.begin(), agreed.notes.end());
  const PublicationFormat& format = publication_format(rank_.options.layout);
  // All ranks reach the same result.
  if (const auto wide = find_wide_positions(format, rank_.options.encoding, rank_.run.layout,
                                            rank_.options.position_limit)) {
    rank_.notes.push_back(concat("tensor '", wide->tensor->name,
                                 "' is too large for the positions of '",
                                 info(rank_.options.encoding).name,
                                 "': versions are published in '", info(wide->encoding).name, "'"));
    rank_.options.encoding = rank_.run.shape.encoding = wide->encoding;
  }
  rank_.use_buffers();
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::vector<OwnedTensor> owned,
      rank_.offers->owned_parts(agreed, rank_.run.layout, rank_.group.rank()));
  PublisherDevice* const device = rank_.options.device.get();
  if (rank_.options.keep_snapshot) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        rank_.store,
        SnapshotStore::create(rank_.run.layout, std::move(owned), rank_.threads, device));
  } else {
    if (!rank_.options.quantize_rule.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(check_quantized_live(rank_.options, rank_.road, agreed));
    }
    DRIFTLESS_RETURN_IF_ERROR(make_live_store(std::move(owned), live));
  }
  rank_.offers->use(*rank_.store);
  if (format.takes_blocks ||
      std::ranges::find(rank_.run.in_blocks, true) == rank_.run.in_blocks.end()) {
    return {};
  }
  DRIFTLESS_ASSIGN_OR_RETURN(rank_.mirror,
                             BlockMirror::open(rank_.group, rank_.run, rank_.threads));
  rank_.notes.push_back(concat("layout ", to_string(rank_.options.layout),
                               " has whole tensors: publisher ", "rank 0 keeps a mirror of the ",
                               rank_.mirror->tensors(), " that are offered in blocks, ",
                               rank_.mirror->size_bytes(), " bytes of host memory"));
  return {};
}

Status PublisherOpening::open_live(WeightSource& live) {
  DRIFTLESS_RETURN_IF_ERROR(rank_.live_offers().check_source(live));
  if (rank_.options.device != nullptr && !publication_format(rank_.options.layout).takes_blocks) {
    return error(
        StatusCode::kUnsupported, "layout ", to_string(rank_.options.layout),
        " is made from tensors in host memory, and these lie on a GPU, without a snapshot: "
        "set snapshot: pinned, or publish frames");
  }
  if (rank_.run.shape.encoding == Encoding::kCompact && !codes_compact(rank_.options)) {
    rank_.run.shape.encoding = Encoding::kDeltas;  // even if no receiver announces its needs
    rank_.use_buffers();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::vector<LivePlace> places,
      rank_.live_offers().find_places(live, rank_.options.device != nullptr));
  if (rank_.quantized_live == nullptr) return rank_.live->open(std::move(places));
  return rank_.quantized_live->open(std::move(places));
}

Status PublisherOpening::seed(WeightSource& base, WeightSource& live, Status ready,
                              const Deadline& deadline) {
  BaseMessage mine;
  mine.status = std::move(ready);
  if (mine.status.ok() && rank_.live != nullptr) mine.status = open_live(live);
  std::vector<Digest> digests(rank_.run.layout.size());
  // Without a snapshot the base is only read for its digests.
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    for (const PairedTensor& offered : batch) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, rank_.store->digest(offered));
      digests[rank_.store->owned(offered.number).tensor()] += digest;
    }
    return {};
  };
  const auto write = [&](std::span<const PairedTensor> batch) {
    const unsigned threads = rank_.options.device == nullptr ? rank_.threads : 1;
    return parallel_for(batch.size(), threads, [&](std::size_t task, unsigned) {
      return rank_.store->write(batch[task].number, batch[task].new_data);
    });
  };
  const auto use = [&](std::span<const PairedTensor> batch) {
    return rank_.live != nullptr ? add(batch) : write(batch);
  };
  if (mine.status.ok()) {
    mine.status = rank_.offers->visit(
        base, rank_.options.device != nullptr, use,
        [&](const OfferedTensor& copy) { return rank_.offers->digest_copy(copy, mine.copies); });
  }
  if (mine.status.ok() && rank_.live == nullptr) {
    Result<std::vector<Digest>> held = rank_.store->digests();
    mine.status = held.status();
    if (held.ok()) digests = std::move(*held);
  }
  rank_.set_digests(std::move(digests));
  if (mine.status.ok()) {
    for (const std::uint32_t tensor : rank_.store->owned_tensors()) {
      mine.tensor_digests.push_back({tensor, rank_.tensor_digests[tensor]});
    }
    rank_.offers->add_kept_copies(mine.tensor_digests, rank_.tensor_digests, mine.copies);
    if (rank_.leader) mine.status = rank_.leader->find_unpublished(rank_.notes);
  }
  mine.digest = rank_.part_digest;
  const Result<std::vector<BaseMessage>> ranks = collect(rank_.group, mine, deadline);
  DigestMessage sum;
  sum.status = ranks.status();
  if (rank_.leader && ranks.ok()) sum = rank_.leader->add_up(*ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const DigestMessage agreed,
                             broadcast_checked(rank_.group, sum, deadline));
  rank_.run.base_digest = rank_.run.digest = agreed.digest;
  return {};
}

// Collective, once: gathers the blocks of all ranks. A full version would also bring them.
Status PublisherOpening::seed_mirror(Status ready, const Deadline& deadline) {
  if (!rank_.mirror) return ready;
  BlockMirror::Frames frames;
  const PayloadContext made =
      rank_.context({rank_.run.id.version, PublicationKind::kVersion}, 0, true);
  const Result<std::unique_ptr<RankPayload>> payload =
      make_payload(rank_.options.device.get(), rank_.mirror->block_context(made, frames));
  if (ready.ok()) ready = payload.status();
  if (ready.ok()) ready = (*payload)->add(rank_.store->offer(&rank_.run.in_blocks));
  if (ready.ok()) ready = (*payload)->finish();
  return rank_.mirror->seed(std::move(ready), frames, deadline);
}

Result<bool> PublisherOpening::start_or_resume(const Deadline& deadline) {
  StartMessage found;
  if (rank_.leader) found = rank_.leader->find_start(deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(StartMessage start,
                             broadcast_checked(rank_.group, std::move(found), deadline));
  DigestMessage mine;
  if (rank_.live == nullptr) {
    mine.status = catch_up(*rank_.store, rank_.run, rank_.history, rank_.group.rank(),
                           rank_.threads, start.version, deadline);
  }
  // Without a snapshot the road's version is not read: compare its digest with that of the present
  // weights.
  if (mine.status.ok() && (rank_.live != nullptr || start.version > 0)) {
    Result<std::vector<Digest>> held = rank_.store->digests();
    mine.status = held.status();
    for (std::size_t i = 0; held.ok() && i < held->size(); ++i) mine.digest += (*held)[i];
    if (held.ok() && start.version > 0) rank_.set_digests(std::move(*held));
  } else {
    mine.digest = rank_.part_digest;
  }
  mine.status = seed_mirror(mine.status, deadline);
  const Result<std::vector<DigestMessage>> ranks = collect(rank_.group, mine, deadline);
  start.status = ranks.status();
  if (rank_.leader && ranks.ok()) {
    Digest held;
    for (const DigestMessage& rank : *ranks) held += rank.digest;
    rank_.leader->start(held, rank_.live != nullptr, start, deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const StartMessage agreed,
                             broadcast_checked(rank_.group, std::move(start), deadline));
  rank_.run.id = {agreed.run, agreed.version};
  rank_.run.digest = agreed.digest;
  rank_.resumed = agreed.resume;
  if (agreed.otherwise) {
    rank_.needs_full =
        agreed.version > 0 || rank_.mirror != nullptr;  // the mirror has these weights
    if (rank_.quantized_live == nullptr || rank_.needs_full) rank_.live->doubt(true);
    rank_.notes.push_back(
        concat("the weights are not those of version ", agreed.version,
               rank_.needs_full ? ", and there is no snapshot of it: the next version goes out in "
                                  "full"
                                : ": the next version carries what differs"));
  }
  if (rank_.quantized_live != nullptr && agreed.version > 0) rank_.quantized_live->forget_base();
  if (agreed.resume) {
    rank_.notes.push_back(
        concat("resumed run ", to_hex(agreed.run), " at version ", agreed.version));
  }
  if (rank_.leader && rank_.leader->highest_number() > rank_.run.id.version) {
    rank_.notes.push_back(concat("versions up to ", rank_.leader->highest_number(),
                                 " were published before ",
                                 "and are not there any more: the next is version ",
                                 rank_.leader->highest_number() + 1, ", in full"));
  }
  return agreed.anchor;
}

}  // namespace driftless
