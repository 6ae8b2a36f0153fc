// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/report_slot.h"

#include <sys/stat.h>
#include <unistd.h>

#include <random>

namespace driftless::host_shm {
namespace {

constexpr int kLooks = 5;  // at a report that is being written

// The content, as it is now; it may be half old, half new.
Result<std::string> content_of(const Descriptor& file, std::string_view what) {
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return errno_status(errno, what);
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size > kMaxReportBytes) return error(StatusCode::kCorrupt, what, ": is too long");
  std::string text(size, '\0');
  DRIFTLESS_RETURN_IF_ERROR(read_all(file, 0, std::as_writable_bytes(std::span(text)), what));
  return text;
}

}  // namespace

Status ReportSlot::take(const HostShmOptions& options, const std::string& id,
                        const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Directory road, Directory::open(options));
  DRIFTLESS_ASSIGN_OR_RETURN(Directory receivers, road.below(kReceiversName));
  if (id_ == id && file_.valid() && receivers.is(id, file_)) return {};
  Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
  do {
    DRIFTLESS_ASSIGN_OR_RETURN(Descriptor file, receivers.open_or_create(id));
    const std::string what = join_path(receivers.path(), id);
    DRIFTLESS_ASSIGN_OR_RETURN(const bool locked, lock_file(file, what));
    // The sender may have taken it for a dead one's, and removed it, before it was locked.
    if (!locked || !receivers.is(id, file)) continue;
    file_ = std::move(file);
    id_ = id;
    directory_ = std::move(receivers);
    if (beat_ == 0) beat_ = std::random_device()();  // another one than before a restart
    return {};
  } while (backoff.sleep(deadline));
  return error(StatusCode::kBusy, "host_shm: a receiver named '", id,
               "' lives already; give this one another receiver.id");
}

Status ReportSlot::say(const HostShmOptions& options, const ReceiverReport& report,
                       const Deadline& deadline) {
  if (!id_.empty() && id_ != report.id) DRIFTLESS_RETURN_IF_ERROR(leave());
  DRIFTLESS_RETURN_IF_ERROR(take(options, report.id, deadline));
  const std::string bytes = report_to_bytes({report, ++beat_});
  const std::string what = join_path(directory_->path(), id_);
  DRIFTLESS_RETURN_IF_ERROR(write_all(file_, 0, std::as_bytes(std::span(bytes)), what));
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes.size())) == 0) return {};
  return errno_status(errno, what);
}

Status ReportSlot::leave() {
  if (id_.empty()) return {};
  if (directory_->is(id_, file_)) DRIFTLESS_RETURN_IF_ERROR(directory_->remove(id_));
  file_.reset();
  id_.clear();
  return {};
}

Result<std::vector<ReceiverReport>> ReportWatch::look(const Directory& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.list());
  const auto now = Deadline::Clock::now();
  std::map<std::string, Seen> seen;
  std::vector<ReceiverReport> alive;
  for (const std::string& name : names) {
    const std::string what = join_path(directory.path(), name);
    const Result<Descriptor> file = directory.open_file(name, true);
    if (!file.ok()) continue;  // has left meanwhile, or is none of ours
    const Result<bool> dead = lock_file(*file, what);
    if (dead.ok() && *dead) {
      // Locked by us: a receiver of this name that starts now makes a new file.
      if (directory.is(name, *file)) const Status ignored = directory.remove(name);
      continue;
    }
    Result<Report> report = error(StatusCode::kCorrupt, what);
    for (int i = 0; i < kLooks && !report.ok(); ++i) {
      const Result<std::string> text = content_of(*file, what);
      if (text.ok()) report = report_from_bytes(*text, what);
    }
    const auto before = seen_.find(name);
    if (!report.ok() && before == seen_.end()) continue;  // has said nothing yet
    Seen entry = before == seen_.end() ? Seen{*report, now} : before->second;
    if (report.ok() && report->report.id == name && report->beat != entry.last.beat) {
      entry = {*report, now};
    }
    if (now - entry.at <= patience_) alive.push_back(entry.last.report);
    seen.emplace(name, std::move(entry));
  }
  seen_ = std::move(seen);
  return alive;
}

}  // namespace driftless::host_shm
