// SPDX-License-Identifier: Apache-2.0
// Publisher::open(): the ranks agree on a layout, seed their snapshots, and start a run or go on
// with one.
#include <algorithm>
#include <set>

#include "core/parallel.h"
#include "formats/run_info.h"
#include "plugin/publish/publisher_rank.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {

PublisherRank::PublisherRank(const PublisherOptions& options, Group& group, SendRoad& road,
                             ReceiveRoad* history)
    : options_(options),
      group_(group),
      road_(road),
      history_(history),
      threads_(options.threads > 0 ? options.threads : default_threads()),
      encoding_(options.encoding),
      chooser_(options.encoding, threads_) {}

Result<std::unique_ptr<Publisher>> Publisher::open(const PublisherOptions& options, Group& group,
                                                   SendRoad& road, ReceiveRoad* history,
                                                   WeightSource& base, WeightSource* live) {
  try {
    const Deadline deadline = Deadline::after(options.deadline);
    auto rank = std::make_unique<PublisherRank>(options, group, road, history);
    group.next_epoch();
    DRIFTLESS_RETURN_IF_ERROR(rank->assemble(base, deadline));
    DRIFTLESS_RETURN_IF_ERROR(rank->seed(base, live != nullptr ? *live : base, deadline));
    DRIFTLESS_RETURN_IF_ERROR(rank->start_or_resume(deadline));
    return std::unique_ptr<Publisher>(std::move(rank));
  } catch (const std::exception& caught) {
    return error(StatusCode::kNoSpace, "opening the publisher: ", caught.what());
  }
}

Result<std::vector<RankMessage>> PublisherRank::collect(const RankMessage& mine,
                                                        const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                             group_.gather(to_message(mine), deadline));
  std::vector<RankMessage> messages;
  Status failed;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    DRIFTLESS_ASSIGN_OR_RETURN(RankMessage message, parse_rank_message(texts[rank]));
    // Where flush() is a meeting, one failure makes all fail: kIncomplete is what it does to the
    // others, so it gives way to the cause.
    const bool cause = failed.ok() || failed.code() == StatusCode::kIncomplete;
    if (!message.status.ok() && cause &&
        (failed.ok() || message.status.code() != StatusCode::kIncomplete)) {
      failed = message.status.with_context(concat("publisher rank ", rank));
    }
    messages.push_back(std::move(message));
  }
  if (!failed.ok()) return failed;
  return messages;
}

Status PublisherRank::hear(LeaderMessage& message, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string text,
      group_.broadcast(group_.leads() ? to_message(message) : std::string(), deadline));
  if (group_.leads()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(message, parse_leader_message(text));
  return {};
}

Result<LeaderMessage> PublisherRank::tell(LeaderMessage message, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(hear(message, deadline));
  if (!message.status.ok()) return message.status;
  return message;
}

Status PublisherRank::begin_together(const PublicationId& id, const Deadline& deadline) {
  if (group_.size() == 1) return {};
  RankMessage mine;
  if (!group_.leads()) mine.status = road_.begin(id, deadline);
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage go;
  if (group_.leads()) go.status = ranks.status();
  const Status told = tell(go, deadline).status();
  if (told.ok()) return {};
  const Status dropped = road_.abort();
  return told.with_context(concat(to_string(id), " was not published"));
}

namespace {

// What the ranks offer of one tensor.
struct Offers {
  const TensorSpec* spec = nullptr;
  std::vector<TensorBox> boxes;
  std::vector<std::uint32_t> ranks;    // of each
  std::vector<std::uint32_t> numbers;  // likewise, among the rank's offers
};

// The same box, if another rank, or this one before, has it; then this one is dropped.
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

// Runs of offers, as LeaderMessage::dropped has them.
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

// What one rank leaves to others is what another one offers.
Status check_left(const std::vector<RankMessage>& ranks,
                  const std::map<std::string_view, Offers>& offered) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::string& name : ranks[rank].left) {
      if (offered.contains(name)) continue;
      return error(StatusCode::kWrongLayout, "tensor '", name, "' is held by publisher rank ", rank,
                   ", which leaves it to others, and no rank publishes it: one that holds it must ",
                   "own it");
    }
  }
  return {};
}

}  // namespace

Result<std::vector<TensorBox>> boxes_of(const WeightSource& weights) {
  const std::span<const TensorSpec> tensors = weights.tensors();
  std::vector<TensorBox> boxes(weights.boxes().begin(), weights.boxes().end());
  if (boxes.empty()) boxes.resize(tensors.size());
  if (boxes.size() != tensors.size()) {
    return error(StatusCode::kInvalidArgument, "the source offers ", tensors.size(),
                 " tensors, and boxes of ", boxes.size());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(tensors[i], boxes[i]));
    if (place.units == tensors[i].units()) boxes[i] = {};
  }
  return boxes;
}

// Every element of a tensor has one owner: the lowest rank that offers its block.
LeaderMessage PublisherRank::assembly(const std::vector<RankMessage>& ranks) {
  LeaderMessage message;
  std::map<std::string_view, Offers> all;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const RankMessage& from = ranks[rank];
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
                                   "publishes each, rank ", kept.first, " that one"));
  }
  message.status = check_left(ranks, all);
  if (!message.status.ok()) return message;
  for (auto& [name, offers] : all) {
    message.status = check_offers(offers);
    if (!message.status.ok()) return message;
    message.tensors.push_back(*offers.spec);
    message.owners.push_back(std::move(offers.ranks));
    all_boxes_.push_back(std::move(offers.boxes));
  }
  Result<std::vector<BlockCut>> cuts = wanted_cuts(message.tensors);
  message.status = cuts.status();
  if (cuts.ok()) message.cuts = own_cuts_ = cuts_ = std::move(*cuts);
  return message;
}

Status PublisherRank::assemble(WeightSource& base, const Deadline& deadline) {
  RankMessage mine;
  offered_.assign(base.tensors().begin(), base.tensors().end());
  const Result<std::vector<TensorBox>> boxes = boxes_of(base);
  mine.status = boxes.status();
  if (boxes.ok()) boxes_ = *boxes;
  base_companions_ = base.companions_dir();
  mine.tensors = offered_;
  mine.boxes = boxes_;
  mine.left.assign(base.left_to_others().begin(), base.left_to_others().end());
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage message;
  if (!ranks.ok()) {
    message.status = ranks.status();
  } else if (group_.leads()) {
    message = assembly(*ranks);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(message, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(layout_, WeightLayout::make(told.tensors));
  notes_ = road_.notes();
  notes_.insert(notes_.end(), told.notes.begin(), told.notes.end());
  fit_positions();
  buffers_.emplace(layout_,
                   info(options_.encoding).positional ? options_.encoding : Encoding::kDeltas);
  return own(told);
}

// What the readers of slime, miles and SGLang take of a tensor whose positions do not fit 4 bytes:
// no positions (xor), or gaps, between which units that did not change are put if need be. They
// cannot take it in pieces. All ranks come to the same.
void PublisherRank::fit_positions() {
  const bool bytes =
      options_.layout == DirectoryLayout::kHfDelta && options_.encoding == Encoding::kOverwrite;
  const bool units =
      options_.layout == DirectoryLayout::kFlush && options_.encoding == Encoding::kIndices;
  const std::uint64_t limit = bytes ? options_.position_limit : options_.position_limit / 2;
  for (const TensorSpec& tensor : layout_.tensors()) {
    if ((!bytes && !units) || (bytes ? tensor.size_bytes : tensor.units()) <= limit) continue;
    const Encoding fits = bytes ? Encoding::kXor : Encoding::kDeltas;
    notes_.push_back(concat("tensor '", tensor.name, "' is too large for the positions of '",
                            info(options_.encoding).name, "': versions are published in '",
                            info(fits).name, "'"));
    options_.encoding = encoding_ = fits;
    return;
  }
}

// What of this rank's offers is its own, and how it is cut. All ranks find the same faults.
Status PublisherRank::own(const LeaderMessage& told) {
  std::map<std::uint32_t, const BlockCut*> cuts;
  for (const BlockCut& cut : told.cuts) cuts[cut.tensor] = &cut;
  for (const std::vector<std::uint32_t>& ranks : told.owners) {
    owners_.push_back(std::set<std::uint32_t>(ranks.begin(), ranks.end()).size());
    in_blocks_.push_back(ranks.size() > 1);
  }
  std::set<std::uint32_t> dropped;
  for (const auto& [rank, first, count] : told.dropped) {
    for (std::uint32_t i = 0; i < count && rank == group_.rank(); ++i) dropped.insert(first + i);
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ours;  // tensor, which of the offers
  for (std::uint32_t i = 0; i < offered_.size(); ++i) {
    const auto index = layout_.find(offered_[i].name);
    if (index && !dropped.contains(i)) ours.emplace_back(*index, i);
  }
  std::ranges::sort(ours);
  number_.assign(offered_.size(), kNotOurs);
  std::vector<OwnedTensor> owned;
  for (const auto& [tensor, offer] : ours) {
    const auto cut = cuts.find(tensor);
    number_[offer] = static_cast<std::uint32_t>(owned.size());
    DRIFTLESS_ASSIGN_OR_RETURN(owned.emplace_back(),
                               OwnedTensor::make(tensor, offered_[offer], boxes_[offer],
                                                 cut != cuts.end() ? cut->second : nullptr));
  }
  find_copies(told, dropped);
  if (options_.keep_snapshot) {
    DRIFTLESS_ASSIGN_OR_RETURN(snapshot_,
                               Snapshot::create(layout_, std::move(owned), options_.device.get()));
  } else {
    snapshot_ = Snapshot::without_memory(layout_, std::move(owned), options_.device.get());
    live_.emplace(snapshot_, options_.device.get(), options_.capture_bytes, threads_);
  }
  return takes_blocks() ? Status() : open_mirror();
}

Status PublisherRank::digest_snapshot() {
  tensor_digests_.assign(layout_.size(), Digest());
  part_digest_ = Digest();
  for (std::uint32_t i = 0; i < snapshot_.owned().size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, snapshot_.digest(i, threads_));
    tensor_digests_[snapshot_.owned(i).tensor()] += digest;
    part_digest_ += digest;
  }
  return {};
}

std::vector<std::uint32_t> PublisherRank::owned_tensors() const {
  std::vector<std::uint32_t> tensors;
  for (const OwnedTensor& owned : snapshot_.owned()) {
    if (tensors.empty() || tensors.back() != owned.tensor()) tensors.push_back(owned.tensor());
  }
  return tensors;
}

Status PublisherRank::find_unpublished() {
  const std::string& path = options_.base_checkpoint;
  if (path.empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint base, Checkpoint::open(posix_file_system(), path));
  DRIFTLESS_RETURN_IF_ERROR(
      base.keep_only(layout_).with_context("the base checkpoint and what is published"));
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
  notes_.push_back(concat(text, ": receivers keep them as they are in the base, and prove it"));
  return {};
}

Status PublisherRank::seed(WeightSource& base, WeightSource& live, const Deadline& deadline) {
  RankMessage mine;
  if (live_) {
    mine.status = open_live(live);
    if (mine.status.ok()) mine.status = digest_base(base, mine.copies);
  } else {
    const unsigned threads = options_.device == nullptr ? threads_ : 1;
    const auto write = [&](std::span<const PairedTensor> batch) {
      return parallel_for(batch.size(), threads, [&](std::size_t task, unsigned) {
        return snapshot_.write(batch[task].number, batch[task].new_data);
      });
    };
    mine.status = visit(base, write,
                        [&](const OfferedTensor& copy) { return digest_copy(copy, mine.copies); });
    if (mine.status.ok()) mine.status = digest_snapshot();
  }
  for (const std::uint32_t tensor : owned_tensors()) {
    if (mine.status.ok()) mine.tensor_digests.push_back({tensor, tensor_digests_[tensor]});
  }
  if (mine.status.ok()) add_kept_copies(mine);
  mine.digest = part_digest_;
  if (mine.status.ok() && group_.leads()) mine.status = find_unpublished();
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage message;
  message.status = ranks.ok() ? check_copies(*ranks) : ranks.status();
  if (ranks.ok()) {
    base_tensor_digests_.assign(layout_.size(), Digest());
    for (const RankMessage& rank : *ranks) {
      message.digest += rank.digest;
      for (const auto& [tensor, digest] : rank.tensor_digests) {
        if (tensor < layout_.size()) base_tensor_digests_[tensor] += digest;
      }
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(message, deadline));
  base_digest_ = told.digest;
  digest_ = told.digest;
  return {};
}

// An announcement that is there is there at once: waiting for one would be waiting for nobody.
Result<std::string> PublisherRank::announced(const Deadline& deadline) {
  if (history_ == nullptr) return error(StatusCode::kNotFound, "no history");
  return history_->run_info(deadline.sooner(std::chrono::milliseconds(0)));
}

// Where the road stands. Leader only.
LeaderMessage PublisherRank::find_start(const Deadline& deadline) {
  LeaderMessage start;
  const auto refuse = [&start](Status status) {
    start.status = std::move(status);
    return start;
  };
  start.run = random_hash128();
  start.digest = digest_;
  const Result<std::string> text = announced(deadline);
  if (!text.ok()) {
    const bool empty = text.status().code() == StatusCode::kNotFound ||
                       text.status().code() == StatusCode::kDeadlineExceeded;
    if (!empty) return refuse(text.status());
    if (options_.resume != ResumeMode::kRequire) return start;
    return refuse(error(StatusCode::kNotFound,
                        "there is no run to resume on this road; set resume: auto to start one"));
  }
  const Result<RunInfo> run = parse_run_info(*text, "the announcement of the run on this road");
  if (!run.ok()) return refuse(run.status());
  constexpr std::string_view kElsewhere =
      "; publish somewhere else, or remove what is there once nobody needs it";
  if (options_.resume == ResumeMode::kNever) {
    return refuse(error(StatusCode::kAlreadyExists, "the road holds run ", to_hex(run->run),
                        " already, and resume is never", kElsewhere));
  }
  if (const Status same = layout_.check_same(run->layout, "this trainer", "the run on the road");
      !same.ok()) {
    return refuse(error(same.code(), same.message(), kElsewhere));
  }
  if (run->base_digest != base_digest_) {
    return refuse(error(
        StatusCode::kWrongBase, "the run on the road started from weights with digest ",
        to_hex(run->base_digest), ", the base given here has ", to_hex(base_digest_), kElsewhere));
  }
  if (run->tensor_digests.empty()) base_tensor_digests_.clear();  // it is announced again as it is
  if (!options_.base_checkpoint.empty() && !run->unpublished.empty() &&
      run->unpublished != unpublished_) {
    return refuse(error(StatusCode::kWrongBase, "the run on the road started from a checkpoint ",
                        "whose other tensors are ", some_of(run->unpublished), "; ",
                        options_.base_checkpoint, " has others, or other bits", kElsewhere));
  }
  unpublished_ = run->unpublished;
  const Result<std::vector<PublicationId>> there = history_->list(deadline);
  if (!there.ok()) return refuse(there.status());
  for (const PublicationId& id : *there) {
    if (id.kind == PublicationKind::kVersion) start.version = id.version;
    if (id.kind == PublicationKind::kAnchor) newest_anchor_ = id.version;
  }
  start.version = std::max(start.version, newest_anchor_.value_or(0));
  const Result<std::uint64_t> highest = road_.highest_number();
  if (!highest.ok()) return refuse(highest.status());
  highest_number_ = *highest;
  start.run = run->run;
  start.resume = true;
  if (start.version > 0) {
    const Result<Digest> newest = newest_digest(start.version, deadline);
    if (!newest.ok()) return refuse(newest.status());
    start.digest = *newest;
  }
  return start;
}

Result<Digest> PublisherRank::newest_digest(std::uint64_t version, const Deadline& deadline) {
  Result<std::string> text =
      history_->fetch_manifest({version, PublicationKind::kVersion}, deadline);
  if (text.status().code() == StatusCode::kNotFound) {
    text = history_->fetch_manifest({version, PublicationKind::kAnchor}, deadline);
  }
  if (!text.ok()) return text.status();
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest,
                             parse_manifest(*text, concat("manifest of version ", version)));
  return manifest.digest;
}

Result<std::unique_ptr<MappedTarget>> PublisherRank::snapshot_target() const {
  const std::span<const OwnedTensor> owned = snapshot_.owned();
  if (std::ranges::find(in_blocks_, true) == in_blocks_.end()) {
    std::vector<std::byte*> data(layout_.size());
    for (std::uint32_t i = 0; i < owned.size(); ++i) data[owned[i].tensor()] = snapshot_.data(i);
    return make_memory_target(layout_, data, VersionId{}, threads_, snapshot_.memory());
  }
  MappedParts parts;
  parts.layout = layout_;
  parts.memory = snapshot_.memory();
  for (std::uint32_t i = 0; i < owned.size(); ++i) {
    if (owned[i].place().units == 0) continue;
    WeightMap map;
    map.tensor = owned[i].tensor();
    map.data = snapshot_.data(i);
    map.unit_bytes = unit_bytes(snapshot_.spec(i).dtype);
    DRIFTLESS_ASSIGN_OR_RETURN(map.map, map_of(owned[i].place(), snapshot_.spec(i).units()));
    parts.maps.push_back(std::move(map));
  }
  MappedOptions options;
  options.initial = VersionId{};
  options.initial_digest = base_digest_;  // of which this is a part
  options.threads = threads_;
  return make_mapped_target(std::move(parts), options);
}

// Brings the snapshot from the base to `version` by following the road as a receiver would.
Status PublisherRank::catch_up(std::uint64_t version, const Deadline& deadline) {
  if (version == 0) return {};
  if (history_ == nullptr) {
    return error(StatusCode::kInvalidArgument, "publisher rank ", group_.rank(),
                 " has no way to read the versions on the road");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<MappedTarget> target, snapshot_target());
  ReceiverOptions options;
  options.id = concat("publisher-", group_.rank());
  options.threads = threads_;
  options.fetch_deadline = deadline.remaining() / 2;  // a damaged version, then an anchor
  options.proof.every = 0;  // nobody else knows of this memory, and all of it is summed at the end
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Receiver> receiver,
                             Receiver::open(options, *history_, *target, deadline));
  bool again = false;
  while (target->state().id.version < version) {
    const Result<bool> next = receiver->stage(deadline);
    // Blocks that this rank has no part of, or some: an anchor may lead past them.
    if (next.status().code() == StatusCode::kMismatch && !std::exchange(again, true)) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, next);
    again = false;
    if (!staged) return deadline.check(concat("reading version ", version, " back"));
    DRIFTLESS_RETURN_IF_ERROR(receiver->commit().status());
  }
  DRIFTLESS_RETURN_IF_ERROR(receiver->leave());
  return digest_snapshot();
}

Status PublisherRank::start_or_resume(const Deadline& deadline) {
  LeaderMessage message;
  if (group_.leads()) message = find_start(deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage start, tell(message, deadline));
  RankMessage mine;
  if (live_) {
    mine = look_at_live(start.version);
  } else {
    mine.status = catch_up(start.version, deadline);
    mine.digest = part_digest_;
  }
  mine.status = seed_mirror(mine.status, deadline);
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage ready = start;
  ready.status = ranks.status();
  if (ranks.ok() && group_.leads()) {
    Digest sum;
    for (const RankMessage& rank : *ranks) sum += rank.digest;
    ready.full = live_ && sum != start.digest;
    if (!live_ && sum != start.digest) {
      ready.status = error(StatusCode::kMismatch, "version ", start.version,
                           " as read back from the road has digest ", to_hex(sum), ", expected ",
                           to_hex(start.digest), "; start a new run on an empty road");
    } else {
      const RunInfo run{start.run,   layout_, base_digest_, group_.size(), base_tensor_digests_,
                        unpublished_};
      ready.status = road_.announce(run_info_to_json(run), deadline);
    }
    // Of a run that goes on, with anchors among its versions, a whole one is there or will be.
    const bool among = anchors_among_versions() && start.version > 0;
    ready.anchor = ready.status.ok() && options_.first_anchor && !newest_anchor_ && !among;
    if (ready.full && ready.anchor) {  // these weights are not the version
      ready.anchor = false;
      anchor_requested_ = true;
    }
    if (ready.anchor) {
      ready.status = road_.begin({start.version, PublicationKind::kAnchor}, deadline);
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(ready, deadline));
  id_ = {told.run, told.version};
  digest_ = told.digest;
  resumed_ = told.resume;
  if (told.full) start_otherwise(told.version);
  if (told.resume)
    notes_.push_back(concat("resumed run ", to_hex(told.run), " at version ", told.version));
  if (highest_number_ > id_.version) {
    notes_.push_back(concat("versions up to ", highest_number_, " were published before and are ",
                            "not there any more: the next is version ", highest_number_ + 1,
                            ", in full"));
  }
  // Receivers without a base wait for this one, so here its failure is a failure.
  return told.anchor ? add_anchor(notes_) : Status();
}

}  // namespace driftless
