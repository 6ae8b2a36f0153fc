// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <set>

#include "collectives/host_shm/medium.h"
#include "collectives/host_shm/record.h"
#include "collectives/open_part.h"

namespace driftless {
namespace host_shm {
namespace {

// A part in its own segment.
class SegmentPart final : public HashedPart {
 public:
  SegmentPart(const std::string& name, std::string file_name, Descriptor file, TakeRoom room,
              std::uint64_t index)
      : HashedPart("host_shm", name, std::move(room)),
        file_name_(std::move(file_name)),
        file_(std::move(file)),
        index_(index) {}

  [[nodiscard]] const std::string& file_name() const { return file_name_; }

 protected:
  Status store(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return write_all(file_, offset, bytes, name());
  }

  Status read(std::uint64_t offset, std::span<std::byte> bytes) override {
    return read_at(file_, offset, bytes, name());
  }

  // Allocates memory for every byte, so that a reader of the mapping never fails for lack of
  // memory.
  Status complete(PartReceipt& receipt, const Deadline& deadline) override {
    receipt.locator = index_;
    const bool may_have_holes = size_bytes() > 0 && !known_hash().has_value();
    if (may_have_holes) DRIFTLESS_RETURN_IF_ERROR(fill());
    return HashedPart::complete(receipt, deadline);
  }

 private:
  [[nodiscard]] Status fill() {
    int failure = EINTR;
    while (failure == EINTR) {
      failure = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(size_bytes()));
    }
    if (failure == 0) return {};
    return errno_status(failure, concat("host_shm: memory for part '", name(),
                                        "'; enlarge the file system or lower road.host_shm.size"));
  }

  const std::string file_name_;
  const Descriptor file_;
  const std::uint64_t index_;
};

// The publications that the sender holds, and the memory that they use. Thread-safe.
class HeldSegments {
 public:
  HeldSegments(const HostShmOptions& options, std::shared_ptr<const Directory> directory,
               std::shared_ptr<const SenderLock> lock)
      : size_bytes_(options.size_bytes),
        versions_(options.versions),
        directory_(std::move(directory)),
        lock_(std::move(lock)) {}

  // kAlreadyExists, or kInvalidArgument if a newer one of its kind exists.
  [[nodiscard]] Status check_new(const PublicationId& id) const {
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

  // The hash of the publication's manifest, if the publication is held.
  [[nodiscard]] std::optional<Hash128> manifest(const PublicationId& id) const {
    const std::scoped_lock lock(mutex_);
    const auto found = publications_.find(id);
    return found == publications_.end() ? std::nullopt : std::optional(found->second.manifest);
  }

  // Begins `id`; gives up a publication that was begun and not put.
  void begin(const PublicationId& id) {
    const std::scoped_lock lock(mutex_);
    pending_ = id;
    pending_bytes_ = 0;
  }

  // Reserves `bytes` more for the publication under construction: removes the oldest versions and,
  // for an anchor, the one before. kNoSpace names the setting to raise.
  [[nodiscard]] Status take_room(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    const auto fits = [&] {
      const std::uint64_t taken = used_bytes_ + pending_bytes_;
      return taken <= size_bytes_ && bytes <= size_bytes_ - taken;
    };
    // If it can never fit, nothing else is removed.
    const bool hopeless = pending_bytes_ > size_bytes_ || bytes > size_bytes_ - pending_bytes_;
    while (!hopeless && !fits() && drop_one()) {
    }
    if (!hopeless && fits()) {
      pending_bytes_ += bytes;
      return {};
    }
    return error(StatusCode::kNoSpace, to_string(pending_), " needs at least ",
                 pending_bytes_ + bytes, " bytes; publications that must stay use ", used_bytes_,
                 " of road.host_shm.size: ", size_bytes_, "; raise it");
  }

  // Call it once the record is written. Removes the publications that then exceed the limits.
  void put(const Hash128& manifest, std::vector<std::string> segments) {
    const std::scoped_lock lock(mutex_);
    publications_[pending_] = {manifest, std::move(segments), pending_bytes_};
    used_bytes_ += pending_bytes_;
    pending_bytes_ = 0;
    while (count(PublicationKind::kAnchor) > 1) drop(oldest(PublicationKind::kAnchor));
    while (count(PublicationKind::kVersion) > versions_) drop(oldest(PublicationKind::kVersion));
  }

  void give_up() { begin({}); }
  // Removes all publications.
  void clear() {
    const std::scoped_lock lock(mutex_);
    while (!publications_.empty()) drop(publications_.begin());
  }

 private:
  struct Held {
    Hash128 manifest;
    std::vector<std::string> segments;
    std::uint64_t bytes = 0;
  };
  using Publications = std::map<PublicationId, Held>;
  // The functions below need the mutex. drop_one() drops the oldest version; for an anchor, all
  // versions but the newest, then the anchor before it.
  [[nodiscard]] bool drop_one() {
    const bool anchor = pending_.kind == PublicationKind::kAnchor;
    if (count(PublicationKind::kVersion) > (anchor ? 1U : 0U)) {
      drop(oldest(PublicationKind::kVersion));
      return true;
    }
    if (!anchor || count(PublicationKind::kAnchor) == 0) return false;
    drop(oldest(PublicationKind::kAnchor));
    return true;
  }

  // Removes the record first: without it the publication does not exist. If the lock is lost, a
  // record of that name belongs to another sender; names of segments are unique.
  void drop(Publications::iterator at) {
    // The next sender removes at its start what cannot be removed now.
    if (lock_->check(*directory_).ok()) {
      const Status ignored = directory_->remove(record_name(at->first));
    }
    for (const std::string& segment : at->second.segments) {
      const Status also_ignored = directory_->remove(segment);
    }
    used_bytes_ -= at->second.bytes;
    publications_.erase(at);
  }

  [[nodiscard]] Publications::iterator oldest(PublicationKind kind) {
    return std::ranges::find_if(publications_,
                                [&](const auto& entry) { return entry.first.kind == kind; });
  }

  [[nodiscard]] std::size_t count(PublicationKind kind) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        publications_, [&](const auto& entry) { return entry.first.kind == kind; }));
  }

  const std::uint64_t size_bytes_;
  const unsigned versions_;
  std::shared_ptr<const Directory> directory_;
  std::shared_ptr<const SenderLock> lock_;  // without it no record is removed
  mutable std::mutex mutex_;
  Publications publications_;
  std::uint64_t used_bytes_ = 0;     // by held publications
  PublicationId pending_;            // being written
  std::uint64_t pending_bytes_ = 0;  // reserved for it
};

constexpr int kLooks = 5;  // attempts to read a report that is being written

// The sender's view. A receiver is alive if it holds its lock and reported within `patience` by
// this process's clock.
class ReportWatch {
 public:
  explicit ReportWatch(std::chrono::milliseconds patience) : patience_(patience) {}
  // Returns the reports of live receivers, and removes the files of dead ones.
  [[nodiscard]] Result<std::vector<ReceiverReport>> look(const Directory& directory) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.list());
    const auto now = Deadline::Clock::now();
    std::map<std::string, Seen> seen;
    std::vector<ReceiverReport> alive;
    for (const std::string& name : names) {
      const std::string what = join_path(directory.path(), name);
      const Result<Descriptor> file = directory.open_file(name, true);
      if (!file.ok()) continue;  // it has left meanwhile, or is not private
      const Result<bool> dead = lock_file(*file, what);
      if (dead.ok() && *dead) {
        // This process holds the lock: a receiver of this name that starts now makes a new file.
        if (directory.is(name, *file)) const Status ignored = directory.remove(name);
        seen_.erase(name);  // it did not call leave()
        continue;
      }
      Result<Report> report = error(StatusCode::kCorrupt, what);
      for (int i = 0; i < kLooks && !report.ok(); ++i) {
        const Result<std::string> text = read_whole(*file, kMaxReportBytes, what);
        if (text.ok()) report = report_from_bytes(*text, what);
      }
      const auto before = seen_.find(name);
      if (!report.ok() && before == seen_.end()) continue;  // no report yet
      Seen entry = before == seen_.end() ? Seen{*report, now} : before->second;
      if (report.ok() && report->report.id == name && report->heartbeat != entry.last.heartbeat) {
        entry = {*report, now};
      }
      if (now - entry.at <= patience_) alive.push_back(entry.last.report);
      left_.erase(name);
      seen.emplace(name, std::move(entry));
    }
    for (const auto& [name, entry] : seen_) {
      if (!seen.contains(name)) left_.insert(name);
    }
    seen_ = std::move(seen);
    return alive;
  }
  // The ids of receivers that removed their files since the first look().
  [[nodiscard]] std::vector<std::string> left() const { return {left_.begin(), left_.end()}; }

 private:
  struct Seen {
    Report last;
    Deadline::Clock::time_point at;
  };
  std::chrono::milliseconds patience_;
  std::map<std::string, Seen> seen_;  // by file name
  std::set<std::string> left_;
};

// Removes what a dead sender left; the lock is held. Keeps the reports, because their receivers may
// live. Runs twice: a live sender that has lost its lock may have named its record during the first
// round.
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

class Sender final : public SendRoad {
 public:
  Sender(const HostShmOptions& options, Directory directory, Directory receivers, SenderLock lock)
      : lock_(std::make_shared<const SenderLock>(std::move(lock))),
        directory_(std::make_shared<const Directory>(std::move(directory))),
        receivers_(std::move(receivers)),
        held_(std::make_shared<HeldSegments>(options, directory_, lock_)),
        watch_(options.patience) {}

  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // Leaves only the lock file, the end of the run and the reports of live receivers.
  ~Sender() override {
    drop();
    held_->clear();
    if (check_held().ok()) const Status ignored = directory_->remove(kRunName);
  }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
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

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    drop();
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("host_shm: beginning ", to_string(id))));
    DRIFTLESS_RETURN_IF_ERROR(check_held());
    DRIFTLESS_RETURN_IF_ERROR(held_->check_new(id));
    held_->begin(id);
    pending_.emplace(Pending{id, to_hex(random_hash128()), {}, {}});
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    std::vector<std::shared_ptr<SegmentPart>>& parts = pending_->parts;
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(parts, name, "host_shm"));
    if (pending_->receipts.has_value()) {
      return error(StatusCode::kAlreadyExists, "host_shm: part '", name,
                   "' comes after the flush()");
    }
    const std::string file_name = segment_name(pending_->id, pending_->token, parts.size());
    DRIFTLESS_ASSIGN_OR_RETURN(Descriptor file, directory_->create(file_name));
    const auto take_room = [held = held_](std::uint64_t bytes) { return held->take_room(bytes); };
    parts.push_back(
        std::make_shared<SegmentPart>(name, file_name, std::move(file), take_room, parts.size()));
    return make_part_file(parts.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("host_shm: flushing"));
    std::vector<PartReceipt> receipts;
    for (const auto& part : pending_->parts) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(0, deadline));
    }
    for (const auto& part : pending_->parts) part->close();
    pending_->receipts = receipts;
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
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
      return error(StatusCode::kUnsupported, "host_shm: ", to_string(pending_->id),
                   ": a record of ", bytes.size(), " bytes, at most ", kMaxRecordBytes,
                   " are allowed");
    }
    DRIFTLESS_RETURN_IF_ERROR(put_record(bytes));
    held_->put(xxh3_128(manifest), std::move(segments));
    pending_.reset();
    return {};
  }

  Status abort() override {
    drop();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_held());
    return held_->manifest(id);
  }

  // This road forgets versions that it does not list.
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<ReceiverReport>> receivers() override { return watch_.look(receivers_); }
  [[nodiscard]] std::vector<std::string> left() const override { return watch_.left(); }

 private:
  struct Pending {
    PublicationId id;
    std::string token;
    std::vector<std::shared_ptr<SegmentPart>> parts;
    std::optional<std::vector<PartReceipt>> receipts;  // set by flush()
  };
  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (pending_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "host_shm: ", what, " without a begin()");
  }

  [[nodiscard]] Status check_held() const { return lock_->check(*directory_); }
  // Writes the record under a temporary name, checks the lock, then gives the record its name. A
  // new sender takes the lock first, and then removes every file that it finds. So if a new sender
  // takes over after the check, it removes the temporary file, and the renaming fails.
  [[nodiscard]] Status put_record(std::string_view bytes) {
    const std::string temporary = concat(record_name(pending_->id), ".", pending_->token, ".tmp");
    Status done = directory_->write_new(temporary, bytes);
    if (done.ok()) done = check_held();
    if (done.ok()) done = directory_->put_new(temporary, record_name(pending_->id));
    if (done.ok()) return {};
    const Status ignored = directory_->remove(temporary);
    const Status held = check_held();
    return held.ok() ? done : held;
  }

  void drop() {
    if (!pending_.has_value()) return;
    for (const auto& part : pending_->parts) {
      part->close();
      // If this fails, the next start removes it.
      const Status ignored = directory_->remove(part->file_name());
    }
    held_->give_up();
    pending_.reset();
  }

  std::shared_ptr<const SenderLock> lock_;
  std::shared_ptr<const Directory> directory_;
  Directory receivers_;
  std::shared_ptr<HeldSegments> held_;
  ReportWatch watch_;
  std::optional<Pending> pending_;
};

}  // namespace
}  // namespace host_shm

Result<std::unique_ptr<SendRoad>> make_host_shm_sender(const HostShmOptions& options) {
  using namespace host_shm;
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  DRIFTLESS_ASSIGN_OR_RETURN(Directory directory, Directory::open(options, true));
  DRIFTLESS_ASSIGN_OR_RETURN(SenderLock lock, SenderLock::take(directory));
  DRIFTLESS_RETURN_IF_ERROR(clear_leftovers(directory));
  DRIFTLESS_ASSIGN_OR_RETURN(Directory receivers, directory.below(kReceiversName));
  return std::unique_ptr<SendRoad>(std::make_unique<Sender>(options, std::move(directory),
                                                            std::move(receivers), std::move(lock)));
}

}  // namespace driftless
