// SPDX-License-Identifier: Apache-2.0
#include "collectives/loopback/medium.h"

#include <algorithm>

namespace driftless {
namespace {

bool is_step(const PublicationId& id) { return id.kind == PublicationKind::kStep; }

}  // namespace

LoopbackHub::LoopbackHub(const LoopbackOptions& options, unsigned ranks)
    : medium_(std::make_shared<LoopbackMedium>(options, ranks)), mail_(make_loopback_mail(ranks)) {}

LoopbackHub::~LoopbackHub() = default;

std::unique_ptr<SendRoad> LoopbackHub::sender(unsigned rank) {
  return make_loopback_sender(medium_, rank);
}

std::unique_ptr<ReceiveRoad> LoopbackHub::receiver() { return make_loopback_receiver(medium_); }

std::unique_ptr<Group> LoopbackHub::group(unsigned rank) {
  return make_loopback_group(mail_, rank);
}

LoopbackMedium::LoopbackMedium(const LoopbackOptions& options, unsigned ranks)
    : options_(options), ranks_(ranks) {}

Status LoopbackMedium::announce(std::string_view run_info) {
  const std::scoped_lock lock(mutex_);
  if (run_info_.has_value() && *run_info_ != run_info) {
    return error(StatusCode::kAlreadyExists,
                 "loopback: the hub carries another run; use a hub of its own for this one");
  }
  run_info_ = run_info;
  changed_.notify_all();
  return {};
}

Result<std::uint64_t> LoopbackMedium::begin(const PublicationId& id, unsigned rank) {
  const std::scoped_lock lock(mutex_);
  if (publications_.contains(id)) {
    return error(StatusCode::kAlreadyExists, "loopback: ", to_string(id),
                 " is there already, and publications are never replaced");
  }
  if (rank == 0) {
    const auto newer = std::ranges::find_if(publications_, [&](const auto& entry) {
      return entry.first.kind == id.kind && entry.first.version > id.version;
    });
    if (newer != publications_.end()) {
      return error(StatusCode::kInvalidArgument, "loopback: ", to_string(id), " after ",
                   to_string(newer->first), ": versions ascend");
    }
    pending_.emplace(Pending{id, ++attempts_, {}});
    pending_->publication.parts.resize(ranks_);
  }
  if (!pending_.has_value() || pending_->id != id) {
    return error(StatusCode::kInvalidArgument, "loopback: rank ", rank, " begins ", to_string(id),
                 " which rank 0 has not begun");
  }
  pending_->publication.parts[rank].reset();
  return pending_->attempt;
}

Status LoopbackMedium::flush(std::uint64_t attempt, unsigned rank,
                             std::vector<LoopbackPart> parts) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) {
    return error(StatusCode::kInvalidArgument, "loopback: rank ", rank,
                 " flushes a publication that rank 0 has aborted");
  }
  pending_->publication.parts[rank] = std::move(parts);
  return {};
}

Status LoopbackMedium::seal(std::uint64_t attempt, std::string_view manifest) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) {
    return error(StatusCode::kInvalidArgument, "loopback: nothing was begun that could be sealed");
  }
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (!pending_->publication.parts[rank].has_value()) {
      return error(StatusCode::kInvalidArgument, "loopback: ", to_string(pending_->id),
                   " cannot be sealed: rank ", rank, " has not flushed");
    }
  }
  pending_->publication.manifest = manifest;
  publications_.emplace(pending_->id, std::move(pending_->publication));
  pending_.reset();
  make_room();
  changed_.notify_all();
  return {};
}

void LoopbackMedium::abort(std::uint64_t attempt, unsigned rank) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) return;
  if (rank == 0) {
    pending_.reset();
  } else {
    pending_->publication.parts[rank].reset();
  }
}

std::optional<Hash128> LoopbackMedium::published(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = publications_.find(id);
  if (found == publications_.end()) return std::nullopt;
  return xxh3_128(found->second.manifest);
}

bool LoopbackMedium::ring_is_exceeded() const {
  std::size_t steps = 0;
  std::vector<std::uint64_t> bytes(ranks_);
  for (const auto& [id, publication] : publications_) {
    if (!is_step(id)) continue;
    ++steps;
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      for (const LoopbackPart& part : *publication.parts[rank]) {
        bytes[rank] += part.receipt.size_bytes;
      }
    }
  }
  if (steps <= 1) return false;  // the newest is never dropped; its writer saw to its size
  return steps > options_.ring_versions ||
         std::ranges::any_of(bytes, [&](std::uint64_t used) { return used > options_.ring_bytes; });
}

void LoopbackMedium::make_room() {
  while (ring_is_exceeded()) {
    publications_.erase(std::ranges::find_if(
        publications_, [](const auto& entry) { return is_step(entry.first); }));
  }
  std::uint64_t newest_anchor = 0;
  for (const auto& [id, publication] : publications_) {
    if (!is_step(id)) newest_anchor = id.version;
  }
  std::erase_if(publications_, [&](const auto& entry) {
    return !is_step(entry.first) && entry.first.version < newest_anchor;
  });
}

std::vector<ReceiverReport> LoopbackMedium::receivers() {
  const std::scoped_lock lock(mutex_);
  const auto now = Deadline::Clock::now();
  std::erase_if(heard_,
                [&](const auto& entry) { return now - entry.second.at > options_.patience; });
  std::vector<ReceiverReport> reports;
  for (const auto& [id, heard] : heard_) reports.push_back(heard.report);
  return reports;
}

Result<std::string> LoopbackMedium::run_info(const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  wait_until(changed_, lock, deadline.at(), [&] { return run_info_.has_value(); });
  if (run_info_.has_value()) return *run_info_;
  return deadline.check("loopback: waiting for the announcement of the run");
}

std::vector<PublicationId> LoopbackMedium::list() const {
  const std::scoped_lock lock(mutex_);
  std::vector<PublicationId> ids;
  for (const auto& [id, publication] : publications_) ids.push_back(id);
  return ids;
}

Status LoopbackMedium::wait_beyond(std::uint64_t version, const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  const bool there = wait_until(changed_, lock, deadline.at(), [&] {
    return std::ranges::any_of(publications_, [&](const auto& entry) {
      return is_step(entry.first) && entry.first.version > version;
    });
  });
  return there ? Status()
               : deadline.check(concat("loopback: waiting for a step past version ", version));
}

Result<const LoopbackMedium::Publication*> LoopbackMedium::find(const PublicationId& id) const {
  const auto found = publications_.find(id);
  if (found != publications_.end()) return &found->second;
  return error(StatusCode::kNotFound, "loopback: ", to_string(id),
               " is not there (any more); take the newest anchor");
}

Result<std::string> LoopbackMedium::manifest(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  return publication->manifest;
}

Result<LoopbackPart> LoopbackMedium::part(const PublicationId& id, const PartReceipt& part) const {
  const std::scoped_lock lock(mutex_);
  DRIFTLESS_ASSIGN_OR_RETURN(const Publication* publication, find(id));
  if (part.rank < ranks_) {
    for (const LoopbackPart& held : *publication->parts[part.rank]) {
      if (held.receipt.name == part.name) return held;
    }
  }
  return error(StatusCode::kCorrupt, "loopback: ", to_string(id), " has no part '", part.name,
               "' of rank ", part.rank);
}

void LoopbackMedium::report(const ReceiverReport& report) {
  const std::scoped_lock lock(mutex_);
  heard_[report.id] = {report, Deadline::Clock::now()};
}

void LoopbackMedium::leave(const std::string& receiver) {
  const std::scoped_lock lock(mutex_);
  heard_.erase(receiver);
}

}  // namespace driftless
