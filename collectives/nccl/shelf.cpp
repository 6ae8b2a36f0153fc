// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/shelf.h"

#include <algorithm>
#include <utility>

namespace driftless::nccl {
namespace {

bool is_step(const PublicationId& id) { return id.kind == PublicationKind::kStep; }

}  // namespace

Status Shelf::check_new(const PublicationId& id) const {
  const std::optional<std::uint64_t>& newest = is_step(id) ? newest_step_ : newest_anchor_;
  if (!newest.has_value() || id.version > *newest) return {};
  return error(StatusCode::kAlreadyExists, "nccl: ", to_string(id),
               " cannot be published: ", to_string({*newest, id.kind}), " is");
}

std::optional<Hash128> Shelf::manifest(const PublicationId& id) const {
  const auto found = held_.find(id);
  return found == held_.end() ? std::nullopt : std::optional(found->second.manifest);
}

void Shelf::add(const PublicationId& id, const Hash128& manifest,
                std::map<unsigned, std::uint64_t> bytes) {
  held_[id] = {manifest, std::move(bytes)};
  if (!is_step(id)) {
    newest_anchor_ = id.version;
    std::erase_if(held_, [&](const auto& entry) {
      return !is_step(entry.first) && entry.first.version < id.version;
    });
    return;
  }
  newest_step_ = id.version;
  while (exceeded()) {
    const auto oldest =
        std::ranges::find_if(held_, [](const auto& entry) { return is_step(entry.first); });
    if (oldest->first == id) return;  // the newest stays, whatever it takes
    held_.erase(oldest);
  }
}

bool Shelf::exceeded() const {
  unsigned steps = 0;
  std::map<unsigned, std::uint64_t> sums;
  for (const auto& [id, held] : held_) {
    if (!is_step(id)) continue;
    ++steps;
    for (const auto& [rank, size] : held.bytes) sums[rank] += size;
  }
  return steps > ring_versions_ ||
         std::ranges::any_of(sums, [&](const auto& sum) { return sum.second > ring_bytes_; });
}

std::vector<PublicationId> Shelf::ids() const {
  std::vector<PublicationId> all;
  for (const auto& [id, held] : held_) all.push_back(id);
  return all;
}

}  // namespace driftless::nccl
