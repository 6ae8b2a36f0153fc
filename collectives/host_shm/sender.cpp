// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/host_shm/medium.h"
#include "collectives/host_shm/part_segment.h"
#include "collectives/host_shm/record.h"
#include "collectives/host_shm/report_slot.h"
#include "collectives/host_shm/shelf.h"

namespace driftless {
namespace host_shm {
namespace {

class Sender final : public SendRoad {
 public:
  Sender(const HostShmOptions& options, Directory directory, Directory receivers, SenderLock lock)
      : lock_(std::make_shared<const SenderLock>(std::move(lock))),
        directory_(std::make_shared<const Directory>(std::move(directory))),
        receivers_(std::move(receivers)),
        shelf_(std::make_shared<Shelf>(options, directory_, lock_)),
        watch_(options.patience) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // Nothing stays but the lock's file, the last word and what receivers that live said.
  ~Sender() override {
    drop();
    shelf_->clear();
    if (check_held().ok()) const Status ignored = directory_->remove(kRunName);
  }

  Status announce(std::string_view run_info, const Deadline& deadline) override;
  Status begin(const PublicationId& id, const Deadline& deadline) override;
  Result<std::unique_ptr<File>> create_part(const std::string& name) override;
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override;
  Status seal(std::string_view manifest, const Deadline& deadline) override;
  Status abort() override {
    drop();
    return {};
  }
  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_held());
    return shelf_->manifest(id);
  }
  Result<std::vector<ReceiverReport>> receivers() override { return watch_.look(receivers_); }
  Result<std::vector<PublicationId>> prune(std::uint64_t) override {
    return std::vector<PublicationId>();  // the shelf makes room by itself
  }
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kHost; }
  void progress() override {}

 private:
  struct Pending {
    PublicationId id;
    std::string token;
    std::vector<std::shared_ptr<PartSegment>> parts;
    std::optional<std::vector<PartReceipt>> receipts;  // once flushed
  };
  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (pending_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "host_shm: ", what, " without a begin()");
  }
  [[nodiscard]] Status check_held() const { return lock_->check(*directory_); }
  [[nodiscard]] Status put_record(std::string_view bytes);
  void drop();

  std::shared_ptr<const SenderLock> lock_;
  std::shared_ptr<const Directory> directory_;
  Directory receivers_;
  std::shared_ptr<Shelf> shelf_;
  ReportWatch watch_;
  std::optional<Pending> pending_;
};

Status Sender::announce(std::string_view run_info, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(deadline.check("host_shm: announcing the run"));
  if (run_info.size() > kMaxRunInfoBytes) {
    return error(StatusCode::kUnsupported, "host_shm: an announcement of ", run_info.size(),
                 " bytes, at most ", kMaxRunInfoBytes, " are allowed");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_held());
  const Result<std::string> before = directory_->read(kRunName, kMaxRunInfoBytes);
  if (before.ok() && *before == run_info) return {};
  if (before.ok()) {
    return error(StatusCode::kAlreadyExists, directory_->path(),
                 ": carries another run; use another road.host_shm.name for this one");
  }
  if (before.status().code() != StatusCode::kNotFound) return before.status();
  return directory_->replace(kRunName, run_info);
}

Status Sender::begin(const PublicationId& id, const Deadline& deadline) {
  drop();
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("host_shm: beginning ", to_string(id))));
  DRIFTLESS_RETURN_IF_ERROR(check_held());
  DRIFTLESS_RETURN_IF_ERROR(shelf_->check_new(id));
  shelf_->begin(id);
  pending_.emplace(Pending{id, to_hex(random_hash128()), {}, {}});
  return {};
}

Result<std::unique_ptr<File>> Sender::create_part(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  std::vector<std::shared_ptr<PartSegment>>& parts = pending_->parts;
  if (pending_->receipts.has_value() ||
      std::ranges::any_of(parts, [&](const auto& part) { return part->name() == name; })) {
    return error(StatusCode::kAlreadyExists, "host_shm: there is a part '", name,
                 "' already, or the publication was flushed");
  }
  const std::string file_name = segment_name(pending_->id, pending_->token, parts.size());
  DRIFTLESS_ASSIGN_OR_RETURN(Descriptor file, directory_->create(file_name));
  const auto take_room = [shelf = shelf_](std::uint64_t bytes) { return shelf->take_room(bytes); };
  parts.push_back(std::make_shared<PartSegment>(name, file_name, std::move(file), take_room));
  return make_segment_file(parts.back());
}

Result<std::vector<PartReceipt>> Sender::flush(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
  DRIFTLESS_RETURN_IF_ERROR(deadline.check("host_shm: flushing"));
  std::vector<PartReceipt> receipts;
  for (const auto& part : pending_->parts) {
    DRIFTLESS_ASSIGN_OR_RETURN(PartReceipt receipt, part->finish(receipts.size()));
    receipts.push_back(std::move(receipt));
  }
  for (const auto& part : pending_->parts) part->close();
  pending_->receipts = receipts;
  return receipts;
}

Status Sender::seal(std::string_view manifest, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
  DRIFTLESS_RETURN_IF_ERROR(deadline.check("host_shm: sealing"));
  if (!pending_->receipts.has_value()) {
    return error(StatusCode::kInvalidArgument, "host_shm: ", to_string(pending_->id),
                 " cannot be sealed: it was not flushed");
  }
  Record record{pending_->token, std::string(manifest), {}};
  std::vector<std::string> segments;
  for (const PartReceipt& receipt : *pending_->receipts) {
    record.parts.push_back({receipt.name, receipt.size_bytes});
    segments.push_back(pending_->parts[receipt.locator]->file_name());
  }
  const std::string bytes = record_to_bytes(record);
  if (bytes.size() > kMaxRecordBytes) {
    return error(StatusCode::kUnsupported, "host_shm: ", to_string(pending_->id), ": a record of ",
                 bytes.size(), " bytes, at most ", kMaxRecordBytes, " are allowed");
  }
  DRIFTLESS_RETURN_IF_ERROR(put_record(bytes));
  shelf_->put(xxh3_128(manifest), std::move(segments));
  pending_.reset();
  return {};
}

// A sender that takes over first has the lock, and then removes every file that it finds. So if the
// lock is still ours once the record is written, and another takes over after that, the record is
// gone before it can get its name.
Status Sender::put_record(std::string_view bytes) {
  const std::string temporary = concat(record_name(pending_->id), ".", pending_->token, ".tmp");
  Status done = directory_->write_new(temporary, bytes);
  if (done.ok()) done = check_held();
  if (done.ok()) done = directory_->put_new(temporary, record_name(pending_->id));
  if (done.ok()) return {};
  const Status ignored = directory_->remove(temporary);
  const Status held = check_held();
  return held.ok() ? done : held;
}

void Sender::drop() {
  if (!pending_.has_value()) return;
  for (const auto& part : pending_->parts) {
    part->close();
    const Status ignored = directory_->remove(part->file_name());  // by the next start, then
  }
  shelf_->give_up();
  pending_.reset();
}

// What a dead sender left; the lock is held. What receivers said stays: they may live. Twice: one
// that is not dead, but has lost its lock, may have named its record while the first round removed.
Status clear_leftovers(const Directory& directory) {
  for (int round = 0; round < 2; ++round) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.list());
    std::vector<std::string> records, others;
    for (const std::string& name : names) {
      if (name == kLockName || name == kReceiversName) continue;
      (parse_record_name(name).has_value() ? records : others).push_back(name);
    }
    for (const std::string& name : records) DRIFTLESS_RETURN_IF_ERROR(directory.remove(name));
    for (const std::string& name : others) DRIFTLESS_RETURN_IF_ERROR(directory.remove(name));
  }
  return {};
}

}  // namespace
}  // namespace host_shm

Result<std::unique_ptr<SendRoad>> make_host_shm_sender(const HostShmOptions& options) {
  using namespace host_shm;
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  DRIFTLESS_ASSIGN_OR_RETURN(Directory directory, Directory::open(options));
  DRIFTLESS_ASSIGN_OR_RETURN(SenderLock lock, SenderLock::take(directory));
  DRIFTLESS_RETURN_IF_ERROR(clear_leftovers(directory));
  DRIFTLESS_ASSIGN_OR_RETURN(Directory receivers, directory.below(kReceiversName));
  return std::unique_ptr<SendRoad>(std::make_unique<Sender>(options, std::move(directory),
                                                            std::move(receivers), std::move(lock)));
}

}  // namespace driftless
