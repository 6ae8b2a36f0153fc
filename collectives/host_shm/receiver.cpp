// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "collectives/host_shm/medium.h"
#include "collectives/host_shm/record.h"
#include "collectives/part_ranges.h"

namespace driftless {
namespace host_shm {
namespace {

// receivers/<id>: this receiver's report, in a file that it locks while it lives. One thread at a
// time. Destruction without leave() has the effect of the process's death.
class ReportSlot {
 public:
  // kBusy, at the deadline, if another live receiver has this id.
  [[nodiscard]] Status write(const HostShmOptions& options, const ReceiverReport& report,
                             const Deadline& deadline) {
    if (!id_.empty() && id_ != report.id) DRIFTLESS_RETURN_IF_ERROR(leave());
    DRIFTLESS_RETURN_IF_ERROR(take(options, report.id, deadline));
    const std::string bytes = report_to_bytes({report, ++heartbeat_});
    const std::string what = join_path(directory_->path(), id_);
    DRIFTLESS_RETURN_IF_ERROR(write_all(file_, 0, std::as_bytes(std::span(bytes)), what));
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes.size())) == 0) return {};
    return errno_status(errno, what);
  }

  [[nodiscard]] Status leave() {
    if (id_.empty()) return {};
    if (directory_->is(id_, file_)) DRIFTLESS_RETURN_IF_ERROR(directory_->remove(id_));
    file_.reset();
    id_.clear();
    return {};
  }

 private:
  [[nodiscard]] Status take(const HostShmOptions& options, const std::string& id,
                            const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Directory road, Directory::open(options, true));
    DRIFTLESS_ASSIGN_OR_RETURN(Directory receivers, road.below(kReceiversName));
    if (id_ == id && file_.valid() && receivers.is(id, file_)) return {};
    Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
    do {
      DRIFTLESS_ASSIGN_OR_RETURN(Descriptor file, receivers.open_or_create(id));
      const std::string what = join_path(receivers.path(), id);
      DRIFTLESS_ASSIGN_OR_RETURN(const bool locked, lock_file(file, what));
      // Before this lock the sender may have taken the receiver for dead, and removed the file.
      if (!locked || !receivers.is(id, file)) continue;
      file_ = std::move(file);
      id_ = id;
      directory_ = std::move(receivers);
      if (heartbeat_ == 0)
        heartbeat_ = random_hash128().low | 1U;  // differs from that before a restart
      return {};
    } while (backoff.sleep(deadline));
    return error(StatusCode::kBusy, "host_shm: a receiver named '", id,
                 "' lives already; give this one another receiver.id");
  }

  std::optional<Directory> directory_;  // of the file
  std::string id_;                      // empty: no file is open
  Descriptor file_;                     // locked
  std::uint64_t heartbeat_ = 0;
};

// Maps the segment. Its size was checked, so reading within it cannot fail.
Result<MappedFile> map_segment(const Descriptor& file, const std::string& name,
                               std::uint64_t size) {
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return errno_status(errno, name);
  if (static_cast<std::uint64_t>(found.st_size) != size) {
    return error(StatusCode::kCorrupt, "host_shm: segment of part '", name, "' has ", found.st_size,
                 " bytes, ", size, " were expected");
  }
  if (size == 0) return MappedFile(name, std::shared_ptr<const void>(), {});
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return errno_status(errno, concat("mapping part ", name));
  return MappedFile(name, static_cast<const std::byte*>(data), size);
}

class Receiver final : public ReceiveRoad {
 public:
  explicit Receiver(HostShmOptions options) : options_(std::move(options)) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    Backoff wait = backoff();
    Waiting waiting;
    const auto whom = [&] {
      return concat("host_shm: waiting for a sender named '", options_.name,
                    "' to announce its run (driftless agent, road.host_shm.name)");
    };
    do {
      const Result<Directory> directory = Directory::open(options_, false);
      Result<std::string> text =
          directory.ok() ? directory->read(kRunName, kMaxRunInfoBytes) : directory.status();
      if (text.ok() || text.status().code() != StatusCode::kNotFound) return text;
    } while (waiting.sleep(wait, deadline, whom));
    return deadline.check(whom());
  }

  Result<std::vector<PublicationId>> list(const Deadline&) override {
    std::vector<PublicationId> ids;
    const Result<Directory> directory = Directory::open(options_, false);
    if (directory.status().code() == StatusCode::kNotFound) return ids;
    DRIFTLESS_RETURN_IF_ERROR(directory.status());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory->list());
    for (const std::string& name : names) {
      if (const auto id = parse_record_name(name)) ids.push_back(*id);
    }
    std::ranges::sort(ids);
    return ids;
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    Backoff wait = backoff();
    do {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, list(deadline));
      if (has_version_past(ids, version)) return {};
    } while (wait.sleep(deadline));
    return deadline.check(concat("host_shm: waiting for a version past ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    DRIFTLESS_ASSIGN_OR_RETURN(Record record, read_record(id));
    return std::move(record.manifest);
  }

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline&) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const Record record, read_record(id));
    if (part.locator >= record.parts.size() || record.parts[part.locator].name != part.name) {
      return error(StatusCode::kCorrupt, "host_shm: ", to_string(id), " has no part '", part.name,
                   "' at place ", part.locator);
    }
    const std::uint64_t size = record.parts[part.locator].size_bytes;
    if (size != part.size_bytes) {
      return error(StatusCode::kCorrupt, "host_shm: part '", part.name, "' of ", to_string(id),
                   " has ", size, " bytes, ", part.size_bytes, " were expected");
    }
    const Result<Directory> directory = Directory::open(options_, false);
    const Result<Descriptor> file =
        directory.ok() ? directory->open_file(segment_name(id, record.token, part.locator), false)
                       : directory.status();
    if (file.status().code() == StatusCode::kNotFound) return not_there("host_shm", id);
    DRIFTLESS_RETURN_IF_ERROR(file.status());
    return map_segment(*file, part.name, size);
  }

  // Returns views of a mapping: no page is touched before the caller reads it.
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("host_shm", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, fetch_part(id, part, deadline));
    return slices(whole, ranges);
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    return slot_.write(options_, report, deadline);
  }

  Status leave(const Deadline&) override { return slot_.leave(); }

 private:
  [[nodiscard]] Result<Record> read_record(const PublicationId& id) const {
    const Result<Directory> directory = Directory::open(options_, false);
    const std::string name = record_name(id);
    const Result<std::string> bytes =
        directory.ok() ? directory->read(name, kMaxRecordBytes) : directory.status();
    if (bytes.status().code() == StatusCode::kNotFound) return not_there("host_shm", id);
    DRIFTLESS_RETURN_IF_ERROR(bytes.status());
    return record_from_bytes(*bytes, join_path(directory->path(), name));
  }

  [[nodiscard]] Backoff backoff() const { return {options_.poll_first, options_.poll_longest}; }

  const HostShmOptions options_;
  ReportSlot slot_;
};

}  // namespace
}  // namespace host_shm

Result<std::unique_ptr<ReceiveRoad>> make_host_shm_receiver(const HostShmOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  return std::unique_ptr<ReceiveRoad>(std::make_unique<host_shm::Receiver>(options));
}

}  // namespace driftless
