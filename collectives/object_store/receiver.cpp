// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "collectives/object_store/http_client.h"
#include "collectives/object_store/receiver_objects.h"
#include "collectives/object_store/spool.h"
#include "collectives/part_ranges.h"
#include "core/parallel.h"

namespace driftless {
namespace object_store {
namespace {

// The receiver looks for the next version by its name, and lists the store only after so many
// looks.
constexpr unsigned kLooksPerList = 16;

// The time for one look, even if less is left to wait.
constexpr std::chrono::milliseconds kLookWait{5000};

Deadline at_least(const Deadline& deadline, std::chrono::milliseconds wait) {
  return deadline.remaining() < wait ? Deadline::after(wait) : deadline;
}

class Receiver final : public ReceiveRoad {
 public:
  Receiver(std::shared_ptr<ObjectStore> store, ObjectStoreOptions options)
      : store_(std::move(store)),
        options_(std::move(options)),
        heartbeat_(random_hash128().low >> 1) {}

  Result<std::string> run_info(const Deadline& deadline) override;
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override;
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override;
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override;
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override;
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override;
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& report, const Deadline& deadline) override;
  Status leave(const Deadline& deadline) override;

 private:
  [[nodiscard]] std::string path(std::string_view key) const {
    return concat(store_->name(), "/", key);
  }
  // Looks by name, because a listing may be out of date; keeps a manifest that it finds.
  [[nodiscard]] Result<bool> look_for(const PublicationId& id, const Deadline& deadline);
  [[nodiscard]] Result<std::vector<PublicationId>> read_list(const Deadline& deadline);
  [[nodiscard]] Status check_sealed(const PublicationId& id, const Deadline& deadline);
  // Fills `bytes` from a part; kNotFound, or kCorrupt if the part is shorter.
  [[nodiscard]] Status read_range(const std::string& key, std::uint64_t offset,
                                  std::span<std::byte> bytes, const Deadline& deadline);
  [[nodiscard]] Result<SpooledMemory> read_part(const std::string& key, std::uint64_t size_bytes,
                                                const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const ObjectStoreOptions options_;
  std::optional<std::pair<PublicationId, std::string>> found_;  // a manifest from look_for()
  bool found_next_ = false;            // wait_beyond() has just found the next version
  std::vector<PublicationId> listed_;  // the last listing
  std::string removed_up_to_;          // every key up to and including this one was removed
  std::set<PublicationId> known_;      // publications seen sealed
  std::string id_;                     // as last reported
  std::uint64_t heartbeat_;
};

Result<std::string> Receiver::run_info(const Deadline& deadline) {
  Backoff backoff(options_.poll_first, options_.poll_longest);
  Waiting waiting;
  const auto whom = [&] { return concat("waiting for a publisher to write ", path(kRunKey)); };
  do {
    auto text =
        store_->get_text(std::string(kRunKey), kMaxTextBytes, at_least(deadline, kLookWait));
    if (text.ok()) return text;
    if (text.status().code() == StatusCode::kNotFound) continue;
    // A store without an answer does not mean that there is no run.
    if (text.status().code() != StatusCode::kDeadlineExceeded) return text.status();
    return error(StatusCode::kIo, text.status().message());
  } while (waiting.sleep(backoff, deadline, whom));
  return deadline.check(whom());
}

Result<std::vector<PublicationId>> Receiver::read_list(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kVersionsPrefix), removed_up_to_, deadline));
  VersionList list = version_list(objects);
  // Names of removed publications stay forever, so the next listing begins after them.
  for (const PublicationId& id : list.removed) {
    if (!list.there.empty() && id.version < list.there.front().version) {
      removed_up_to_ = std::max(removed_up_to_, version_key(id));
    }
  }
  listed_ = std::move(list.there);
  known_.insert(listed_.begin(), listed_.end());
  return listed_;
}

Result<std::vector<PublicationId>> Receiver::list(const Deadline& wait) {
  const Deadline deadline = at_least(wait, kLookWait);
  // If wait_beyond() has just found the version that follows the listed ones, no further request is
  // needed.
  const bool next = std::exchange(found_next_, false) && found_ && found_->first.version > 1;
  if (next && has_version_past(listed_, found_->first.version - 2)) {
    if (!has_version_past(listed_, found_->first.version - 1)) listed_.push_back(found_->first);
    return listed_;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> ids, read_list(deadline));
  // A listing may lack an object that a request by its name has returned.
  if (found_ && !std::ranges::binary_search(ids, found_->first)) {
    ids.insert(std::ranges::upper_bound(ids, found_->first), found_->first);
  }
  std::uint64_t newest = 0;
  for (const PublicationId& id : ids) {
    if (is_version(id)) newest = id.version;
  }
  while (!ids.empty()) {
    const PublicationId later{++newest, PublicationKind::kVersion};
    DRIFTLESS_ASSIGN_OR_RETURN(const bool found, look_for(later, deadline));
    if (!found) break;
    ids.insert(std::ranges::upper_bound(ids, later), later);
  }
  return ids;
}

Result<bool> Receiver::look_for(const PublicationId& id, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::optional<VersionObject> version,
                             object_store::read_version(*store_, id, deadline));
  if (!version || version->removed) return false;
  found_.emplace(id, std::move(version->manifest));
  known_.insert(id);
  return true;
}

Status Receiver::wait_beyond(std::uint64_t version, const Deadline& deadline) {
  const PublicationId next{version + 1, PublicationKind::kVersion};
  Backoff backoff(options_.poll_first, options_.poll_longest);
  for (unsigned looks = 0;; ++looks) {
    const Deadline look = at_least(deadline, kLookWait);
    DRIFTLESS_ASSIGN_OR_RETURN(const bool found, look_for(next, look));
    found_next_ = found;
    if (found) return {};
    if (looks % kLooksPerList == 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, read_list(look));
      if (has_version_past(ids, version)) return {};
    }
    if (!backoff.sleep(deadline)) break;
  }
  return deadline.check(concat(store_->name(), ": waiting for a version past ", version));
}

Result<std::string> Receiver::fetch_manifest(const PublicationId& id, const Deadline& deadline) {
  const bool found = found_ && found_->first == id;
  if (!found) {
    found_.reset();
    DRIFTLESS_ASSIGN_OR_RETURN(const bool there, look_for(id, deadline));
    if (!there) return not_there(store_->name(), id);
  }
  return std::exchange(found_, std::nullopt)->second;
}

Status Receiver::check_sealed(const PublicationId& id, const Deadline& deadline) {
  if (known_.contains(id)) return {};
  const auto found = std::exchange(found_, std::nullopt);
  DRIFTLESS_ASSIGN_OR_RETURN(const bool sealed, look_for(id, deadline));
  found_ = found;
  return sealed ? Status() : not_there(store_->name(), id);
}

// Reads in pieces, several at a time.
Status Receiver::read_range(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) {
  const std::uint64_t pieces = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
  const auto fetch = [&](std::size_t i, unsigned) -> Status {
    const std::uint64_t at = i * kPieceBytes;
    const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t came,
                               store_->get(key, offset + at, piece, deadline));
    if (came == piece.size()) return {};
    return error(StatusCode::kCorrupt, path(key), ": ", came, " bytes from ", offset + at,
                 " on came, ", piece.size(), " were asked for");
  };
  return parallel_for(pieces, options_.streams, fetch);
}

Result<SpooledMemory> Receiver::read_part(const std::string& key, std::uint64_t size_bytes,
                                          const Deadline& deadline) {
  const auto wrong_size = [&](std::uint64_t found) {
    return error(StatusCode::kCorrupt, path(key), ": ", found, " bytes, ", size_bytes,
                 " were expected");
  };
  if (size_bytes < kPieceBytes) {
    // One request for one byte more than the part should have.
    DRIFTLESS_ASSIGN_OR_RETURN(
        SpooledMemory memory, make_spooled_memory(options_.spool_dir, size_bytes + 1, kPieceBytes));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t came,
                               store_->get(key, 0, memory.bytes, deadline));
    if (came != size_bytes) return wrong_size(came);
    memory.bytes = memory.bytes.first(size_bytes);
    return memory;
  }
  // Reads the size first: allocates nothing for a part that does not exist.
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t size, store_->size(key, deadline));
  if (size != size_bytes) return wrong_size(size);
  DRIFTLESS_ASSIGN_OR_RETURN(SpooledMemory memory,
                             make_spooled_memory(options_.spool_dir, size_bytes, kPieceBytes));
  DRIFTLESS_RETURN_IF_ERROR(read_range(key, 0, memory.bytes, deadline));
  return memory;
}

Result<MappedFile> Receiver::fetch_part(const PublicationId& id, const PartReceipt& part,
                                        const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const std::string key = part_key(id, part);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path(key))));
  DRIFTLESS_RETURN_IF_ERROR(check_sealed(id, deadline));
  Result<SpooledMemory> memory = read_part(key, part.size_bytes, deadline);
  if (memory.status().code() == StatusCode::kNotFound) return not_there(store_->name(), id);
  DRIFTLESS_RETURN_IF_ERROR(memory.status());
  return MappedFile(part.name, memory->owner, memory->bytes);
}

Result<std::vector<MappedFile>> Receiver::fetch_ranges(const PublicationId& id,
                                                       const PartReceipt& part,
                                                       std::span<const ByteRange> ranges,
                                                       const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const std::string key = part_key(id, part);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path(key))));
  DRIFTLESS_RETURN_IF_ERROR(check_ranges("object_store", id, part, ranges));
  DRIFTLESS_RETURN_IF_ERROR(check_sealed(id, deadline));
  const Result<std::uint64_t> size = store_->size(key, deadline);
  if (size.status().code() == StatusCode::kNotFound) return not_there(store_->name(), id);
  DRIFTLESS_RETURN_IF_ERROR(size.status());
  if (*size != part.size_bytes) {
    return error(StatusCode::kCorrupt, path(key), ": ", *size, " bytes, ", part.size_bytes,
                 " were expected");
  }
  const RangePlaces places(ranges);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                             allocate_ranges(places, path(key)));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::span<std::byte> bytes = places.of(i, memory.get());
    if (bytes.empty()) continue;
    const Status read = read_range(key, ranges[i].offset, bytes, deadline);
    if (read.code() == StatusCode::kNotFound) return not_there(store_->name(), id);
    DRIFTLESS_RETURN_IF_ERROR(read);
  }
  return places.files(part.name, memory, memory.get());
}

Status Receiver::report(const ReceiverReport& report, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_report(report));
  const std::string text = shared_fs::receiver_to_json(report, ++heartbeat_);
  const Status put = store_->put(receiver_key(report.id), bytes_of(text), false, deadline);
  // A store that can only be read: the publisher does not know this receiver.
  if (put.code() == StatusCode::kUnsupported) return {};
  DRIFTLESS_RETURN_IF_ERROR(put);
  id_ = report.id;
  return {};
}

Status Receiver::leave(const Deadline& deadline) {
  if (id_.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(store_->remove(receiver_key(id_), deadline));
  id_.clear();
  return {};
}

}  // namespace
}  // namespace object_store

Result<std::unique_ptr<ReceiveRoad>> make_object_store_receiver(std::shared_ptr<ObjectStore> store,
                                                                const ObjectStoreOptions& options) {
  return std::unique_ptr<ReceiveRoad>(
      std::make_unique<object_store::Receiver>(std::move(store), options));
}

Result<std::shared_ptr<ObjectStore>> open_object_store(const ObjectStoreOptions& options) {
  constexpr std::string_view kScheme = "s3://";
  const std::string_view url = options.url;
  if (options.store != nullptr) return options.store;
  if (url.starts_with("http://") || url.starts_with("https://")) {
    return make_web_store(options.url, options.ca_file);
  }
  if (url.starts_with("hf://")) {
    return error(StatusCode::kUnsupported, "road.object_store.url: '", url,
                 "' is a Hugging Face bucket, which is reached through Python: use driftless.Job");
  }
  if (!url.starts_with(kScheme)) {
    return error(StatusCode::kInvalidArgument, "road.object_store.url: '",
                 object_store::without_query(url),
                 "' is neither s3://bucket/prefix nor http(s)://host/path");
  }
  std::string_view rest = url.substr(kScheme.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const auto slash = rest.find('/');
  S3Options s3;
  s3.bucket = rest.substr(0, slash);
  if (slash != std::string_view::npos) s3.prefix = rest.substr(slash + 1);
  s3.endpoint = options.endpoint;
  s3.region = options.region;
  s3.profile = options.profile;
  s3.ca_file = options.ca_file;
  return make_s3_store(s3);
}

}  // namespace driftless
