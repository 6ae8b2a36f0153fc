// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "collectives/host_shm/medium.h"
#include "collectives/host_shm/record.h"
#include "collectives/host_shm/report_slot.h"

namespace driftless {
namespace host_shm {
namespace {

class Receiver final : public ReceiveRoad {
 public:
  explicit Receiver(HostShmOptions options) : options_(std::move(options)) {}

  Result<std::string> run_info(const Deadline& deadline) override;
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override;
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override;
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override;
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override;
  Status report(const ReceiverReport& report, const Deadline& deadline) override;
  Status leave(const Deadline& deadline) override;

 private:
  [[nodiscard]] Result<Record> read_record(const PublicationId& id) const;
  [[nodiscard]] Backoff backoff() const { return {options_.poll_first, options_.poll_longest}; }

  const HostShmOptions options_;
  ReportSlot slot_;
};

Status gone(const PublicationId& id) {
  return error(StatusCode::kNotFound, "host_shm: ", to_string(id),
               " is not there (any more); take the newest anchor");
}

Result<std::string> Receiver::run_info(const Deadline& deadline) {
  Backoff wait = backoff();
  do {
    const Result<Directory> directory = Directory::find(options_);
    Result<std::string> text =
        directory.ok() ? directory->read(kRunName, kMaxRunInfoBytes) : directory.status();
    if (text.ok() || text.status().code() != StatusCode::kNotFound) return text;
  } while (wait.sleep(deadline));
  return deadline.check(concat("host_shm: waiting for a sender named '", options_.name,
                               "' to announce its run (driftless agent, road.host_shm.name)"));
}

Result<std::vector<PublicationId>> Receiver::list(const Deadline&) {
  std::vector<PublicationId> ids;
  const Result<Directory> directory = Directory::find(options_);
  if (directory.status().code() == StatusCode::kNotFound) return ids;
  DRIFTLESS_RETURN_IF_ERROR(directory.status());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory->list());
  for (const std::string& name : names) {
    if (const auto id = parse_record_name(name)) ids.push_back(*id);
  }
  std::ranges::sort(ids);
  return ids;
}

Status Receiver::wait_beyond(std::uint64_t version, const Deadline& deadline) {
  Backoff wait = backoff();
  do {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, list(deadline));
    const bool there = std::ranges::any_of(ids, [&](const PublicationId& id) {
      return id.kind == PublicationKind::kStep && id.version > version;
    });
    if (there) return {};
  } while (wait.sleep(deadline));
  return deadline.check(concat("host_shm: waiting for a step past version ", version));
}

Result<Record> Receiver::read_record(const PublicationId& id) const {
  const Result<Directory> directory = Directory::find(options_);
  const std::string name = record_name(id);
  const Result<std::string> bytes =
      directory.ok() ? directory->read(name, kMaxRecordBytes) : directory.status();
  if (bytes.status().code() == StatusCode::kNotFound) return gone(id);
  DRIFTLESS_RETURN_IF_ERROR(bytes.status());
  return record_from_bytes(*bytes, join_path(directory->path(), name));
}

Result<std::string> Receiver::fetch_manifest(const PublicationId& id, const Deadline&) {
  DRIFTLESS_ASSIGN_OR_RETURN(Record record, read_record(id));
  return std::move(record.manifest);
}

// The segment, mapped. Its size was checked: reading within it cannot fail.
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

Result<MappedFile> Receiver::fetch_part(const PublicationId& id, const PartReceipt& part,
                                        const Deadline&) {
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
  const Result<Directory> directory = Directory::find(options_);
  if (directory.status().code() == StatusCode::kNotFound) return gone(id);
  DRIFTLESS_RETURN_IF_ERROR(directory.status());
  const Result<Descriptor> file =
      directory->open_file(segment_name(id, record.token, part.locator), false);
  if (file.status().code() == StatusCode::kNotFound) return gone(id);
  DRIFTLESS_RETURN_IF_ERROR(file.status());
  return map_segment(*file, part.name, size);
}

Status Receiver::report(const ReceiverReport& report, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_report(report));
  return slot_.say(options_, report, deadline);
}

Status Receiver::leave(const Deadline&) { return slot_.leave(); }

}  // namespace
}  // namespace host_shm

Result<std::unique_ptr<ReceiveRoad>> make_host_shm_receiver(const HostShmOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  return std::unique_ptr<ReceiveRoad>(std::make_unique<host_shm::Receiver>(options));
}

}  // namespace driftless
