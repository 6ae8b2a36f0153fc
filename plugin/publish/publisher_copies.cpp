// SPDX-License-Identifier: Apache-2.0
// Tensors or blocks that several publisher ranks hold. The lowest rank publishes each; the others'
// must have the same bits in every version, or they are other tensors under the same name, of which
// nobody would ever hear.
#include "plugin/publish/publisher_rank.h"

namespace driftless {

void PublisherRank::find_copies(const LeaderMessage& told, const std::set<std::uint32_t>& dropped) {
  std::map<std::string_view, unsigned> blocks;  // that this rank publishes of each tensor
  for (std::uint32_t i = 0; i < offered_.size(); ++i) {
    if (!dropped.contains(i)) ++blocks[offered_[i].name];
  }
  copies_ = dropped;
  for (const auto& [rank, offer] : told.copied) {
    if (rank != group_.rank() || offer >= offered_.size()) continue;
    const std::string& name = offered_[offer].name;
    const auto tensor = layout_.find(name);
    if (blocks[name] == 1 && tensor) {
      kept_copies_[offer] = *tensor;
    } else {
      copies_.insert(offer);
    }
  }
}

Status PublisherRank::digest_copy(const OfferedTensor& offered, TensorDigests& digests) const {
  const auto number = static_cast<std::uint32_t>(offered.tensor);
  DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(offered_[number], boxes_[number]));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Digest digest,
      snapshot_.digest(offered_[number], place, offered.data, offered.memory, threads_));
  digests.push_back({number, digest});
  return {};
}

Status PublisherRank::look_at_copy(const OfferedTensor& offered) const {
  const auto number = static_cast<std::uint32_t>(offered.tensor);
  const auto lay = live_copies_.find(number);
  const bool there = lay != live_copies_.end() && lay->second.data == offered.data;
  if (there || offered_[number].units() == 0) return {};
  return moved_error(offered_[number].name);
}

Status PublisherRank::observe_copies() {
  seen_copies_.clear();
  if (watched_copies_.empty()) return {};
  if (options_.device != nullptr) DRIFTLESS_RETURN_IF_ERROR(options_.device->wait_for_trainer());
  for (const std::uint32_t number : watched_copies_) {
    DRIFTLESS_RETURN_IF_ERROR(digest_copy(live_copies_.at(number), seen_copies_));
  }
  return {};
}

Status PublisherRank::digest_live_copies(TensorDigests& digests) const {
  digests = seen_copies_;
  for (const auto& [number, copy] : live_copies_) {
    if (watched_copies_.contains(number)) continue;
    DRIFTLESS_RETURN_IF_ERROR(digest_copy(copy, digests));
  }
  return {};
}

void PublisherRank::add_kept_copies(RankMessage& mine) const {
  std::map<std::uint32_t, Digest> now;
  for (const auto& [tensor, digest] : mine.tensor_digests) now[tensor] = digest;
  for (const auto& [offer, tensor] : kept_copies_) {
    const auto changed = now.find(tensor);
    mine.copies.push_back(
        {offer, changed != now.end() ? changed->second : tensor_digests_[tensor]});
  }
}

Status PublisherRank::check_copies(const std::vector<RankMessage>& ranks) const {
  std::map<RankOffer, Digest> digests;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [offer, digest] : ranks[rank].copies) digests[{rank, offer}] = digest;
  }
  for (const auto& [dropped, kept] : kept_for_) {
    const auto one = digests.find(dropped), other = digests.find(kept);
    if (one == digests.end() || other == digests.end()) {
      return error(StatusCode::kInternal, "tensor '", copied_names_.at(kept),
                   "': a publisher rank did not tell the digest of its copy");
    }
    if (one->second == other->second) continue;
    return error(
        StatusCode::kMismatch, "tensor '", copied_names_.at(kept),
        "' has other bits on publisher rank ", dropped.first, " than on rank ", kept.first,
        ": if they are different tensors, publish them under different names; if they are ",
        "copies, bring them in step",
        live_ && live_->behind() ? "; or they were written since publish(wait=False) was called"
                                 : "");
  }
  return {};
}

}  // namespace driftless
