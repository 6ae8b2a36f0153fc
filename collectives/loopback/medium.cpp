// SPDX-License-Identifier: Apache-2.0
#include "collectives/loopback/medium.h"

namespace driftless {

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
    : options_(options),
      ranks_(ranks),
      ring_("loopback", options.ring_bytes, options.ring_versions) {}

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
  if (ring_.manifest(id)) {
    return error(StatusCode::kAlreadyExists, "loopback: ", to_string(id),
                 " is there already, and publications are never replaced");
  }
  if (rank == 0) {
    const Status order = ring_.check_new(id);
    if (!order.ok()) return error(StatusCode::kInvalidArgument, order.message());
    pending_.emplace(Pending{id, ++attempts_, {}});
    held_.forget_staged();
  }
  if (!pending_.has_value() || pending_->id != id) {
    return error(StatusCode::kInvalidArgument, "loopback: rank ", rank, " begins ", to_string(id),
                 " which rank 0 has not begun");
  }
  pending_->bytes.erase(rank);
  return pending_->attempt;
}

Status LoopbackMedium::flush(std::uint64_t attempt, unsigned rank, std::vector<HeldPart> parts) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) {
    return error(StatusCode::kInvalidArgument, "loopback: rank ", rank,
                 " flushes a publication that rank 0 has aborted");
  }
  std::uint64_t& bytes = pending_->bytes[rank] = 0;
  for (const HeldPart& part : parts) bytes += part.bytes.size();
  held_.stage(attempt, rank, std::move(parts));
  return {};
}

Status LoopbackMedium::seal(std::uint64_t attempt, std::string_view manifest) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) {
    return error(StatusCode::kInvalidArgument, "loopback: nothing was begun that could be sealed");
  }
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (!pending_->bytes.contains(rank)) {
      return error(StatusCode::kInvalidArgument, "loopback: ", to_string(pending_->id),
                   " cannot be sealed: rank ", rank, " has not flushed");
    }
  }
  ring_.add(pending_->id, xxh3_128(manifest), std::move(pending_->bytes));
  (void)held_.commit(attempt, pending_->id, std::string(manifest), ring_.ids());
  pending_.reset();
  changed_.notify_all();
  return {};
}

void LoopbackMedium::abort(std::uint64_t attempt, unsigned rank) {
  const std::scoped_lock lock(mutex_);
  if (!is_pending(attempt)) return;
  pending_->bytes.erase(rank);
  if (rank == 0) pending_.reset();
}

std::optional<Hash128> LoopbackMedium::published(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  return ring_.manifest(id);
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
  return held_.list();
}

Status LoopbackMedium::wait_beyond(std::uint64_t version, const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  const bool there =
      wait_until(changed_, lock, deadline.at(), [&] { return held_.has_step_past(version); });
  return there ? Status()
               : deadline.check(concat("loopback: waiting for a step past version ", version));
}

Result<std::string> LoopbackMedium::manifest(const PublicationId& id) const {
  const std::scoped_lock lock(mutex_);
  return held_.manifest(id);
}

Result<HeldPart> LoopbackMedium::part(const PublicationId& id, const PartReceipt& part) const {
  const std::scoped_lock lock(mutex_);
  return held_.part(id, part);
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
