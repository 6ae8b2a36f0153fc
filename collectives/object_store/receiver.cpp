// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "collectives/object_store/http_client.h"
#include "collectives/object_store/medium.h"
#include "collectives/object_store/spool.h"
#include "collectives/shared_fs/receiver_file.h"
#include "core/parallel.h"

namespace driftless {
namespace object_store {
namespace {

// Looks at the next version alone between two looks at all of them.
constexpr unsigned kLooksPerList = 16;

// One look is whole, however little time is left to wait.
constexpr std::chrono::milliseconds kLookWait{5000};

Deadline at_least(const Deadline& deadline, std::chrono::milliseconds wait) {
  return deadline.remaining() < wait ? Deadline::after(wait) : deadline;
}

class Receiver final : public ReceiveRoad {
 public:
  Receiver(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options)
      : store_(std::move(store)), options_(options), beat_(random_hash128().low >> 1) {}

  Result<std::string> run_info(const Deadline& deadline) override;
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override;
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override;
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override;
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override;
  Status report(const ReceiverReport& report, const Deadline& deadline) override;
  Status leave(const Deadline& deadline) override;

 private:
  [[nodiscard]] std::string path(std::string_view key) const {
    return concat(store_->name(), "/", key);
  }
  [[nodiscard]] static std::string report_key(std::string_view id) {
    return concat(kReceiversPrefix, id, ".json");
  }
  [[nodiscard]] Status gone(std::string_view key) const {
    return error(StatusCode::kNotFound, path(key),
                 ": it is not there (any more); take the newest anchor");
  }
  // What is there right now, by its name; remembers a manifest that it found.
  [[nodiscard]] Result<bool> look_for(const PublicationId& id, const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const ObjectStoreOptions options_;
  std::optional<std::pair<PublicationId, std::string>> found_;  // by look_for()
  std::set<PublicationId> known_;                               // were seen sealed
  std::string id_;                                              // as last reported
  std::uint64_t beat_;
};

Result<std::string> Receiver::run_info(const Deadline& deadline) {
  Backoff backoff(options_.poll_first, options_.poll_longest);
  do {
    auto text = store_->get_text(std::string(kRunKey), kMaxTextBytes, deadline);
    if (text.ok() || text.status().code() != StatusCode::kNotFound) return text;
  } while (backoff.sleep(deadline));
  return deadline.check(concat("waiting for a publisher to write ", path(kRunKey)));
}

Result<std::vector<PublicationId>> Receiver::list(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kVersionsPrefix), deadline));
  std::vector<PublicationId> ids = publications(objects);
  // A list may be behind what was already seen by name.
  if (found_ && !std::ranges::binary_search(ids, found_->first)) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool still, look_for(PublicationId(found_->first), deadline));
    if (still) ids.insert(std::ranges::upper_bound(ids, found_->first), found_->first);
  }
  return ids;
}

Result<bool> Receiver::look_for(const PublicationId& id, const Deadline& deadline) {
  found_.reset();
  Result<std::string> text = store_->get_text(version_key(id), kMaxTextBytes, deadline);
  if (text.status().code() == StatusCode::kNotFound) return false;
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  if (text->empty()) return false;  // removed
  found_.emplace(id, std::move(*text));
  known_.insert(id);
  return true;
}

Status Receiver::wait_beyond(std::uint64_t version, const Deadline& deadline) {
  const PublicationId next{version + 1, PublicationKind::kVersion};
  Backoff backoff(options_.poll_first, options_.poll_longest);
  for (unsigned looks = 0;; ++looks) {
    const Deadline look = at_least(deadline, kLookWait);
    DRIFTLESS_ASSIGN_OR_RETURN(const bool found, look_for(next, look));
    if (found) return {};
    if (looks % kLooksPerList == 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, list(look));
      const bool there = std::ranges::any_of(ids, [&](const PublicationId& id) {
        return id.kind == PublicationKind::kVersion && id.version > version;
      });
      if (there) return {};
    }
    if (!backoff.sleep(deadline)) break;
  }
  return deadline.check(concat(store_->name(), ": waiting for a step past version ", version));
}

Result<std::string> Receiver::fetch_manifest(const PublicationId& id, const Deadline& deadline) {
  const std::string key = version_key(id);
  std::string text;
  if (found_ && found_->first == id) {
    text = std::exchange(found_, std::nullopt)->second;
  } else {
    Result<std::string> read = store_->get_text(key, kMaxTextBytes, deadline);
    if (read.status().code() == StatusCode::kNotFound) return gone(key);
    DRIFTLESS_RETURN_IF_ERROR(read.status());
    text = std::move(*read);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(VersionObject version, parse_version_text(std::move(text), path(key)));
  return std::move(version.manifest);
}

Result<MappedFile> Receiver::fetch_part(const PublicationId& id, const PartReceipt& part,
                                        const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const std::string key = concat(parts_prefix(id, part.locator), part.name);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path(key))));
  if (!known_.contains(id)) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool sealed, look_for(id, deadline));
    found_.reset();  // for wait_beyond() alone
    if (!sealed) return gone(key);
  }
  // Its size first: nothing is set aside for one that is not there.
  const auto size = store_->get(key, 0, {}, deadline);
  if (size.status().code() == StatusCode::kNotFound) return gone(key);
  DRIFTLESS_RETURN_IF_ERROR(size.status());
  if (*size != part.size_bytes) {
    return error(StatusCode::kCorrupt, path(key), ": ", *size, " bytes, ", part.size_bytes,
                 " were expected");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const SpooledMemory memory,
                             make_spooled_memory(options_.spool_dir, part.size_bytes, kPieceBytes));
  const std::uint64_t pieces = (part.size_bytes + kPieceBytes - 1) / kPieceBytes;
  const Status fetched =
      parallel_for(pieces, std::max(1U, options_.streams), [&](std::size_t i, unsigned) {
        const std::uint64_t at = i * kPieceBytes;
        const auto piece = memory.bytes.subspan(at, std::min(kPieceBytes, part.size_bytes - at));
        return store_->get(key, at, piece, deadline).status();
      });
  if (fetched.code() == StatusCode::kNotFound) return gone(key);
  DRIFTLESS_RETURN_IF_ERROR(fetched);
  return MappedFile(part.name, memory.owner, memory.bytes);
}

Status Receiver::report(const ReceiverReport& report, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_report(report));
  const std::string text = shared_fs::receiver_to_json(report, ++beat_);
  const Status put = store_->put(report_key(report.id), bytes_of(text), false, deadline);
  // A store that can only be read: the publisher does not know of this receiver.
  if (put.code() == StatusCode::kUnsupported) return {};
  DRIFTLESS_RETURN_IF_ERROR(put);
  id_ = report.id;
  return {};
}

Status Receiver::leave(const Deadline& deadline) {
  if (id_.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(store_->remove(report_key(id_), deadline));
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
  if (url.starts_with("http://") || url.starts_with("https://")) return make_web_store(options.url);
  if (!url.starts_with(kScheme)) {
    return error(StatusCode::kInvalidArgument, "road.url: '", object_store::without_query(url),
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
  return make_s3_store(s3);
}

}  // namespace driftless
