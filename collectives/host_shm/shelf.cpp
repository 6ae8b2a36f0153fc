// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/shelf.h"

#include <algorithm>

namespace driftless::host_shm {

Status Shelf::check_new(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [other, held] : publications_) {
    if (other.kind != id.kind || other.version < id.version) continue;
    if (other == id) {
      return error(StatusCode::kAlreadyExists, "host_shm: ", to_string(id),
                   " is there already, and publications are never replaced");
    }
    return error(StatusCode::kInvalidArgument, "host_shm: ", to_string(id), " after ",
                 to_string(other), ": versions ascend");
  }
  return {};
}

std::optional<Hash128> Shelf::manifest(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = publications_.find(id);
  return found == publications_.end() ? std::nullopt : std::optional(found->second.manifest);
}

void Shelf::begin(const PublicationId& id) {
  const std::scoped_lock lock(mutex_);
  pending_ = id;
  pending_bytes_ = 0;
}

void Shelf::give_up() { begin({}); }

Status Shelf::take_room(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto fits = [&] {
    const std::uint64_t taken = used_bytes_ + pending_bytes_;
    return taken <= size_bytes_ && bytes <= size_bytes_ - taken;
  };
  // What can never fit makes nobody else go.
  const bool hopeless = pending_bytes_ > size_bytes_ || bytes > size_bytes_ - pending_bytes_;
  while (!hopeless && !fits() && drop_one()) {
  }
  if (!hopeless && fits()) {
    pending_bytes_ += bytes;
    return {};
  }
  return error(StatusCode::kNoSpace, to_string(pending_), " needs ", pending_bytes_ + bytes,
               " bytes and more, ", used_bytes_,
               " are taken by what must stay, of road.host_shm.size: ", size_bytes_, "; raise it");
}

void Shelf::put(const Hash128& manifest, std::vector<std::string> segments) {
  const std::scoped_lock lock(mutex_);
  publications_[pending_] = {manifest, std::move(segments), pending_bytes_};
  used_bytes_ += pending_bytes_;
  pending_bytes_ = 0;
  while (count(PublicationKind::kAnchor) > 1) drop(oldest(PublicationKind::kAnchor));
  while (count(PublicationKind::kStep) > versions_) drop(oldest(PublicationKind::kStep));
}

void Shelf::clear() {
  const std::scoped_lock lock(mutex_);
  while (!publications_.empty()) drop(publications_.begin());
}

// For a step the oldest step; for an anchor all steps but the newest, then the anchor before it.
bool Shelf::drop_one() {
  const bool anchor = pending_.kind == PublicationKind::kAnchor;
  if (count(PublicationKind::kStep) > (anchor ? 1U : 0U)) {
    drop(oldest(PublicationKind::kStep));
    return true;
  }
  if (!anchor || count(PublicationKind::kAnchor) == 0) return false;
  drop(oldest(PublicationKind::kAnchor));
  return true;
}

// The record first: what has none is not there. The record of that name is another sender's once
// the lock is lost; segments have names of their own.
void Shelf::drop(Publications::iterator at) {
  // What cannot be removed now is removed by the next sender's start.
  if (lock_->check(*directory_).ok()) {
    const Status ignored = directory_->remove(record_name(at->first));
  }
  for (const std::string& segment : at->second.segments) {
    const Status also_ignored = directory_->remove(segment);
  }
  used_bytes_ -= at->second.bytes;
  publications_.erase(at);
}

Shelf::Publications::iterator Shelf::oldest(PublicationKind kind) {
  return std::ranges::find_if(publications_,
                              [&](const auto& entry) { return entry.first.kind == kind; });
}

std::size_t Shelf::count(PublicationKind kind) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      publications_, [&](const auto& entry) { return entry.first.kind == kind; }));
}

}  // namespace driftless::host_shm
