// SPDX-License-Identifier: Apache-2.0
// Publisher::open(): the ranks agree on a layout, seed their snapshots, and start a run or go on
// with one.
#include <algorithm>

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
      threads_(options.threads > 0 ? options.threads : default_threads()) {}

Result<std::unique_ptr<Publisher>> Publisher::open(const PublisherOptions& options, Group& group,
                                                   SendRoad& road, ReceiveRoad* history,
                                                   WeightSource& base) {
  try {
    const Deadline deadline = Deadline::after(options.deadline);
    auto rank = std::make_unique<PublisherRank>(options, group, road, history);
    group.next_epoch();
    DRIFTLESS_RETURN_IF_ERROR(rank->assemble(base, deadline));
    DRIFTLESS_RETURN_IF_ERROR(rank->seed(base, deadline));
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

// Every tensor has one owner: the lowest rank that offers it.
LeaderMessage PublisherRank::assembly(const std::vector<RankMessage>& ranks) const {
  LeaderMessage message;
  std::map<std::string_view, std::pair<std::uint32_t, const TensorSpec*>> owner;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const TensorSpec& tensor : ranks[rank].tensors) {
      const auto [seen, first] = owner.emplace(tensor.name, std::pair(rank, &tensor));
      if (first) continue;
      if (*seen->second.second != tensor) {
        message.status =
            error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is ",
                  info(tensor.dtype).name, " ", tensor.shape_string(), " on publisher rank ", rank,
                  ", but ", info(seen->second.second->dtype).name, " ",
                  seen->second.second->shape_string(), " on rank ", seen->second.first);
        return message;
      }
      message.notes.push_back(concat("tensor '", tensor.name, "' is offered by publisher ranks ",
                                     seen->second.first, " and ", rank, ": rank ", rank,
                                     " leaves it out"));
    }
  }
  for (const auto& [name, entry] : owner) {
    message.tensors.push_back(*entry.second);
    message.owners.push_back(entry.first);
  }
  return message;
}

Status PublisherRank::assemble(WeightSource& base, const Deadline& deadline) {
  RankMessage mine;
  offered_.assign(base.tensors().begin(), base.tensors().end());
  mine.tensors = offered_;
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage message;
  if (!ranks.ok()) {
    message.status = ranks.status();
  } else if (group_.leads()) {
    message = assembly(*ranks);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(message, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(layout_, WeightLayout::make(told.tensors));
  buffers_.emplace(layout_,
                   info(options_.encoding).positional ? options_.encoding : Encoding::kDeltas);
  notes_ = told.notes;
  std::vector<std::uint32_t> owned;
  for (const TensorSpec& tensor : offered_) {
    const auto index = layout_.find(tensor.name);
    // Twice by the same rank: the first one counts.
    const bool ours = index && told.owners[*index] == group_.rank() &&
                      std::ranges::find(owned, *index) == owned.end();
    tensor_.push_back(ours ? *index : kNotOurs);
    if (ours) owned.push_back(*index);
  }
  std::ranges::sort(owned);
  DRIFTLESS_ASSIGN_OR_RETURN(snapshot_,
                             Snapshot::create(layout_, std::move(owned), options_.device.get()));
  return {};
}

Status PublisherRank::digest_snapshot() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> digests, snapshot_.digests(threads_));
  tensor_digests_.assign(layout_.size(), Digest());
  part_digest_ = Digest();
  for (std::size_t i = 0; i < digests.size(); ++i) {
    tensor_digests_[snapshot_.tensors()[i]] = digests[i];
    part_digest_ += digests[i];
  }
  return {};
}

Status PublisherRank::seed(WeightSource& base, const Deadline& deadline) {
  RankMessage mine;
  const unsigned threads = options_.device == nullptr ? threads_ : 1;
  mine.status = visit(base, [&](std::span<const PairedTensor> batch) {
    return parallel_for(batch.size(), threads, [&](std::size_t task, unsigned) {
      return snapshot_.write(batch[task].tensor, batch[task].new_data);
    });
  });
  if (mine.status.ok()) mine.status = digest_snapshot();
  for (const std::uint32_t tensor : snapshot_.tensors()) {
    if (mine.status.ok()) mine.tensor_digests.push_back({tensor, tensor_digests_[tensor]});
  }
  mine.digest = part_digest_;
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage message;
  message.status = ranks.status();
  if (ranks.ok()) {
    base_tensor_digests_.assign(layout_.size(), Digest());
    for (const RankMessage& rank : *ranks) {
      message.digest += rank.digest;
      for (const auto& [tensor, digest] : rank.tensor_digests) {
        if (tensor < layout_.size()) base_tensor_digests_[tensor] = digest;
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

// Brings the snapshot from the base to `version` by following the road as a receiver would.
Status PublisherRank::catch_up(std::uint64_t version, const Deadline& deadline) {
  if (version == 0) return {};
  if (history_ == nullptr) {
    return error(StatusCode::kInvalidArgument, "publisher rank ", group_.rank(),
                 " has no way to read the versions on the road");
  }
  std::vector<std::byte*> data(layout_.size());
  for (const std::uint32_t tensor : snapshot_.tensors()) data[tensor] = snapshot_.data(tensor);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<MappedTarget> target,
      make_memory_target(layout_, data, VersionId{}, threads_, snapshot_.memory()));
  ReceiverOptions options;
  options.id = concat("publisher-", group_.rank());
  options.threads = threads_;
  options.fetch_deadline = deadline.remaining();
  options.proof.every = 0;  // nobody else knows of this memory, and all of it is summed at the end
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Receiver> receiver,
                             Receiver::open(options, *history_, *target, deadline));
  while (target->state().id.version < version) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, receiver->stage(deadline));
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
  mine.status = catch_up(start.version, deadline);
  mine.digest = part_digest_;
  const Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage ready = start;
  ready.status = ranks.status();
  if (ranks.ok() && group_.leads()) {
    Digest sum;
    for (const RankMessage& rank : *ranks) sum += rank.digest;
    if (sum != start.digest) {
      ready.status = error(StatusCode::kMismatch, "version ", start.version,
                           " as read back from the road has digest ", to_hex(sum), ", expected ",
                           to_hex(start.digest), "; start a new run on an empty road");
    } else {
      const RunInfo run{start.run, layout_, base_digest_, group_.size(), base_tensor_digests_};
      ready.status = road_.announce(run_info_to_json(run), deadline);
    }
    // Of a run that goes on, with anchors among its versions, a whole one is there or will be.
    const bool among = anchors_among_versions() && start.version > 0;
    ready.anchor = ready.status.ok() && options_.first_anchor && !newest_anchor_ && !among;
    if (ready.anchor) {
      ready.status = road_.begin({start.version, PublicationKind::kAnchor}, deadline);
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(ready, deadline));
  id_ = {told.run, told.version};
  digest_ = told.digest;
  resumed_ = told.resume;
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
