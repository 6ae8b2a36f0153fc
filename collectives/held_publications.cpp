// SPDX-License-Identifier: Apache-2.0
#include "collectives/held_publications.h"

namespace driftless {

Status RetentionRing::check_new(const PublicationId& id) const {
  const auto newest = newest_.find(id.kind);
  if (newest == newest_.end() || id.version > newest->second) return {};
  return error(StatusCode::kAlreadyExists, road_, ": ", to_string(id),
               " cannot be published after ", to_string({newest->second, id.kind}),
               ": numbers must ascend");
}

std::optional<Hash128> RetentionRing::manifest(const PublicationId& id) const {
  const auto found = held_.find(id);
  return found == held_.end() ? std::nullopt : std::optional(found->second.manifest);
}

void RetentionRing::add(const PublicationId& id, const Hash128& manifest,
                        std::map<unsigned, std::uint64_t> bytes) {
  held_[id] = {manifest, std::move(bytes)};
  newest_[id.kind] = id.version;
  if (!is_version(id)) {
    std::erase_if(held_, [&](const auto& entry) {
      return !is_version(entry.first) && entry.first.version < id.version;
    });
    return;
  }
  while (exceeded()) {
    const auto oldest =
        std::ranges::find_if(held_, [](const auto& entry) { return is_version(entry.first); });
    if (oldest->first == id) return;  // the newest stays, however large
    held_.erase(oldest);
  }
}

bool RetentionRing::exceeded() const {
  unsigned versions = 0;
  std::map<unsigned, std::uint64_t> sums;
  for (const auto& [id, held] : held_) {
    if (!is_version(id)) continue;
    ++versions;
    for (const auto& [rank, size] : held.bytes) sums[rank] += size;
  }
  return versions > ring_versions_ ||
         std::ranges::any_of(sums, [&](const auto& sum) { return sum.second > ring_bytes_; });
}

std::vector<PublicationId> RetentionRing::ids() const {
  std::vector<PublicationId> all;
  for (const auto& [id, held] : held_) all.push_back(id);
  return all;
}

void HeldPublications::stage(std::uint64_t attempt, unsigned rank, std::vector<HeldPart> parts) {
  if (attempt != attempt_) staged_.clear();
  attempt_ = attempt;
  std::erase_if(staged_, [&](const auto& entry) { return entry.first.first == rank; });
  for (HeldPart& part : parts) staged_[{rank, part.receipt.name}] = std::move(part);
}

void HeldPublications::drop(std::uint64_t attempt) {
  if (attempt == attempt_) staged_.clear();
}

bool HeldPublications::commit(std::uint64_t attempt, const PublicationId& id, std::string manifest,
                              const std::vector<PublicationId>& kept) {
  if (attempt != attempt_) return false;
  publications_[id] = {std::move(manifest), std::exchange(staged_, {})};
  attempt_ = 0;
  std::erase_if(publications_, [&](const auto& entry) {
    return std::ranges::find(kept, entry.first) == kept.end();
  });
  return true;
}

void HeldPublications::forget_staged() {
  staged_.clear();
  attempt_ = 0;
}

void HeldPublications::clear() {
  forget_staged();
  publications_.clear();
}

std::vector<PublicationId> HeldPublications::list() const {
  std::vector<PublicationId> ids;
  for (const auto& [id, publication] : publications_) ids.push_back(id);
  return ids;
}

bool HeldPublications::has_version_past(std::uint64_t version) const {
  return driftless::has_version_past(list(), version);
}

Result<const HeldPublications::Publication*> HeldPublications::find(const PublicationId& id) const {
  const auto found = publications_.find(id);
  if (found != publications_.end()) return &found->second;
  return not_there(road_, id);
}

Result<std::string> HeldPublications::manifest(const PublicationId& id) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  return publication->manifest;
}

Result<HeldPart> HeldPublications::part(const PublicationId& id, const PartReceipt& wanted) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  const auto found = publication->parts.find({wanted.rank, wanted.name});
  if (found == publication->parts.end()) {
    return error(StatusCode::kCorrupt, road_, ": ", to_string(id), " has no part '", wanted.name,
                 "' of rank ", wanted.rank);
  }
  if (found->second.receipt.size_bytes != wanted.size_bytes) {
    return error(StatusCode::kCorrupt, road_, ": part '", wanted.name, "' of ", to_string(id),
                 " has ", found->second.receipt.size_bytes, " bytes, ", wanted.size_bytes,
                 " were expected");
  }
  return found->second;
}

}  // namespace driftless
