// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/landing.h"

#include <algorithm>

namespace driftless::nccl {

void Landing::stage(std::uint64_t attempt, unsigned rank, std::vector<LandedPart> parts) {
  if (attempt != attempt_) staged_.clear();
  attempt_ = attempt;
  for (LandedPart& part : parts) staged_[{rank, part.receipt.name}] = std::move(part);
}

void Landing::drop(std::uint64_t attempt) {
  if (attempt == attempt_) staged_.clear();
}

bool Landing::commit(std::uint64_t attempt, const PublicationId& id, std::string manifest,
                     const std::vector<PublicationId>& kept) {
  if (attempt != attempt_) return false;
  publications_[id] = {std::move(manifest), std::exchange(staged_, {})};
  attempt_ = 0;
  std::erase_if(publications_, [&](const auto& entry) {
    return std::ranges::find(kept, entry.first) == kept.end();
  });
  return true;
}

void Landing::forget_staged() {
  staged_.clear();
  attempt_ = 0;
}

void Landing::clear() {
  forget_staged();
  publications_.clear();
}

std::vector<PublicationId> Landing::list() const {
  std::vector<PublicationId> ids;
  for (const auto& [id, publication] : publications_) ids.push_back(id);
  return ids;
}

bool Landing::has_step_past(std::uint64_t version) const {
  return std::ranges::any_of(publications_, [&](const auto& entry) {
    return entry.first.kind == PublicationKind::kStep && entry.first.version > version;
  });
}

Result<const Landing::Publication*> Landing::find(const PublicationId& id) const {
  const auto found = publications_.find(id);
  if (found != publications_.end()) return &found->second;
  return error(StatusCode::kNotFound, "nccl: ", to_string(id),
               " is not there (any more); take the newest anchor");
}

Result<std::string> Landing::manifest(const PublicationId& id) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  return publication->manifest;
}

Result<LandedPart> Landing::part(const PublicationId& id, const PartReceipt& wanted) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  const auto found = publication->parts.find({wanted.rank, wanted.name});
  if (found == publication->parts.end()) {
    return error(StatusCode::kCorrupt, "nccl: ", to_string(id), " has no part '", wanted.name,
                 "' of rank ", wanted.rank);
  }
  if (found->second.receipt.size_bytes != wanted.size_bytes) {
    return error(StatusCode::kCorrupt, "nccl: part '", wanted.name, "' of ", to_string(id), " has ",
                 found->second.receipt.size_bytes, " bytes, ", wanted.size_bytes, " were expected");
  }
  return found->second;
}

}  // namespace driftless::nccl
