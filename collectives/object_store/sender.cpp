// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "collectives/object_store/medium.h"
#include "collectives/object_store/part_upload.h"
#include "collectives/shared_fs/receiver_file.h"
#include "core/parallel.h"

namespace driftless {
namespace object_store {
namespace {

using std::chrono::milliseconds;

// Removed versions whose names stay taken. A publisher that was stopped for longer than that many
// versions, and whose run went on without it, is noticed by publisher.json alone.
constexpr std::uint64_t kTakenNames = 1000;

class Sender final : public SendRoad {
 public:
  Sender(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options, unsigned rank)
      : store_(std::move(store)),
        options_(options),
        rank_(rank),
        session_(to_hex(random_hash128())),
        senders_(options.streams) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() override { const Status ignored = abort(); }

  Status announce(std::string_view run_info, const Deadline& deadline) override;
  Status begin(const PublicationId& id, const Deadline& deadline) override;
  Result<std::unique_ptr<File>> create_part(const std::string& name) override;
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override;
  Status seal(std::string_view manifest, const Deadline& deadline) override;
  Status abort() override;
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override;
  Result<std::vector<ReceiverReport>> receivers() override;
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override;
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kHost; }
  void progress() override {}

 private:
  struct Pending {
    PublicationId id;
    std::uint64_t attempt = 0;
  };
  struct Seen {
    Hash128 content;
    Deadline::Clock::time_point at;
  };

  [[nodiscard]] bool leads() const { return rank_ == 0; }
  [[nodiscard]] std::string path(std::string_view key) const {
    return concat(store_->name(), "/", key);
  }
  [[nodiscard]] Deadline soon() const { return Deadline::after(options_.request_timeout); }
  [[nodiscard]] Status check_leads(std::string_view what) const;
  [[nodiscard]] Status check_begun(std::string_view what) const;
  [[nodiscard]] Status fenced(std::string_view why);
  [[nodiscard]] Status probe_conditions(const Deadline& deadline);
  [[nodiscard]] Status take_session(const Deadline& deadline);
  [[nodiscard]] Status check_session(const Deadline& deadline);
  [[nodiscard]] Status clear_leftovers(const Deadline& deadline);
  [[nodiscard]] Status remove_below(const std::string& prefix, const Deadline& deadline);
  [[nodiscard]] Result<std::vector<PublicationId>> there(const Deadline& deadline);
  [[nodiscard]] Result<std::uint64_t> read_attempt(const PublicationId& id,
                                                   const Deadline& deadline);
  [[nodiscard]] Result<std::optional<VersionObject>> read_version(const PublicationId& id,
                                                                  const Deadline& deadline);
  [[nodiscard]] Status write_index(const Deadline& deadline);
  [[nodiscard]] Result<std::vector<shared_fs::ReceiverWatch::Receiver>> alive();

  const std::shared_ptr<ObjectStore> store_;
  const ObjectStoreOptions options_;
  const unsigned rank_;
  const std::string session_;
  bool session_taken_ = false;
  bool conditional_ = true;  // the store honours If-None-Match
  Status fenced_;            // for good
  std::optional<Pending> pending_;
  std::vector<std::shared_ptr<PartUpload>> parts_;
  std::map<std::string, Seen> seen_;  // receivers, by key
  Senders senders_;                   // last: ends before what its tasks use
};

Status Sender::check_leads(std::string_view what) const {
  if (leads()) return fenced_;
  return error(StatusCode::kInvalidArgument, store_->name(), ": ", what, " is rank 0's, not rank ",
               rank_, "'s");
}

Status Sender::check_begun(std::string_view what) const {
  if (pending_.has_value()) return {};
  return error(StatusCode::kInvalidArgument, store_->name(), ": ", what, " on rank ", rank_,
               " without a begin()");
}

Status Sender::fenced(std::string_view why) {
  fenced_ = error(StatusCode::kWrongRun, store_->name(), ": ", why,
                  ". Another publisher has taken over; this one must stop");
  return fenced_;
}

// Puts an object twice: the second time must be refused.
Status Sender::probe_conditions(const Deadline& deadline) {
  const std::string key = concat(kAttemptsPrefix, "probe-", session_);
  DRIFTLESS_RETURN_IF_ERROR(store_->put(key, bytes_of("1"), true, deadline));
  const Status second = store_->put(key, bytes_of("2"), true, deadline);
  const Status removed = store_->remove(key, deadline);
  conditional_ = second.code() == StatusCode::kAlreadyExists;
  if (!conditional_ && !second.ok()) return second;
  if (conditional_ || options_.single_writer) return removed;
  return error(StatusCode::kUnsupported, store_->name(),
               ": the store ignores If-None-Match, so two publishers could both win a version; "
               "use another store, or set road.single_writer: true if you are sure that there is "
               "one publisher");
}

Status Sender::take_session(const Deadline& deadline) {
  char host[256] = "?";
  (void)gethostname(host, sizeof(host) - 1);
  const nlohmann::json json{{"session", session_},
                            {"process", concat("process ", getpid(), " on ", host)}};
  DRIFTLESS_RETURN_IF_ERROR(
      store_->put(std::string(kPublisherKey), bytes_of(json.dump() + "\n"), false, deadline));
  session_taken_ = true;
  return {};
}

Status Sender::check_session(const Deadline& deadline) {
  if (!session_taken_) return {};
  const auto text = store_->get_text(std::string(kPublisherKey), kMaxSmallBytes, deadline);
  if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, false);
  const auto field = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string("nobody");
  };
  if (field("session") == session_) return {};
  return fenced(concat(kPublisherKey, " names ", field("process")));
}

Result<std::vector<PublicationId>> Sender::there(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kVersionsPrefix), deadline));
  return publications(objects);
}

Status Sender::remove_below(const std::string& prefix, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(prefix, deadline));
  return parallel_for(objects.size(), std::max(1U, options_.streams), [&](std::size_t i, unsigned) {
    return store_->remove(objects[i].key, deadline);
  });
}

// What publishers that died left: uploads, attempts, and parts of attempts that nobody sealed.
Status Sender::clear_leftovers(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(store_->drop_uploads(std::string(kPartsPrefix), deadline));
  DRIFTLESS_RETURN_IF_ERROR(remove_below(std::string(kAttemptsPrefix), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kPartsPrefix), deadline));
  std::map<std::string, std::string> attempts;  // prefix of parts, to the publication's name
  for (const ObjectInfo& object : objects) {
    const std::size_t dot = object.key.find('.', kPartsPrefix.size());
    const std::size_t end = object.key.find('/', kPartsPrefix.size());
    if (dot == std::string::npos || end == std::string::npos || dot > end) continue;
    attempts[object.key.substr(0, end + 1)] =
        object.key.substr(kPartsPrefix.size(), dot - kPartsPrefix.size());
  }
  std::map<std::string, std::string> sealed;  // publication's name, to its parts' prefix
  for (const auto& [prefix, name] : attempts) {
    const auto id = parse_publication_name(name);
    if (!id) continue;
    if (!sealed.contains(name)) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                                 read_version(*id, deadline));
      sealed[name] = version ? parts_prefix(*id, version->attempt) : "";
    }
    if (sealed[name] != prefix) DRIFTLESS_RETURN_IF_ERROR(remove_below(prefix, deadline));
  }
  return {};
}

Status Sender::announce(std::string_view run_info, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("announcing"));
  const std::string key(kRunKey);
  if (run_info.size() > kMaxTextBytes) {
    return error(StatusCode::kUnsupported, path(key), ": an announcement of ", run_info.size(),
                 " bytes, at most ", kMaxTextBytes, " are allowed");
  }
  DRIFTLESS_RETURN_IF_ERROR(probe_conditions(deadline));
  const auto before = store_->get_text(key, kMaxTextBytes, deadline);
  if (!before.ok()) {
    if (before.status().code() != StatusCode::kNotFound) return before.status();
    Status put = store_->put(key, bytes_of(run_info), conditional_, deadline);
    if (put.code() == StatusCode::kAlreadyExists) {
      // Another publisher's, or our own, whose answer was lost.
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string now,
                                 store_->get_text(key, kMaxTextBytes, deadline));
      if (now == run_info) put = {};
    }
    DRIFTLESS_RETURN_IF_ERROR(put);
  } else if (*before != run_info) {
    return error(StatusCode::kAlreadyExists, path(key),
                 ": the prefix belongs to another run; use another one, or empty this one");
  }
  DRIFTLESS_RETURN_IF_ERROR(take_session(deadline));
  return clear_leftovers(deadline);
}

// The number under which this attempt's parts lie: the leader's, which the others read.
Result<std::uint64_t> Sender::read_attempt(const PublicationId& id, const Deadline& deadline) {
  const std::string key = concat(kAttemptsPrefix, publication_name(id), ".json");
  Backoff backoff(options_.poll_first, options_.poll_longest);
  do {
    const auto text = store_->get_text(key, kMaxSmallBytes, deadline);
    if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
    const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, false);
    if (json.is_object() && json.contains("attempt") && json["attempt"].is_number_unsigned()) {
      return json["attempt"].get<std::uint64_t>();
    }
  } while (backoff.sleep(deadline));
  return deadline.check(
      concat(store_->name(), ": rank ", rank_, " waits for rank 0 to begin ", to_string(id)));
}

Result<std::optional<VersionObject>> Sender::read_version(const PublicationId& id,
                                                          const Deadline& deadline) {
  const std::string key = version_key(id);
  Result<std::string> text = store_->get_text(key, kMaxTextBytes, deadline);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<VersionObject>();
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  Result<VersionObject> version = parse_version_text(std::move(*text), path(key));
  if (version.status().code() == StatusCode::kNotFound) return std::optional<VersionObject>();
  DRIFTLESS_RETURN_IF_ERROR(version.status());
  return std::optional(std::move(*version));
}

Status Sender::begin(const PublicationId& id, const Deadline& deadline) {
  const Status ignored = abort();
  DRIFTLESS_RETURN_IF_ERROR(fenced_);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(store_->name(), ": beginning ", to_string(id))));
  Pending pending{id, 0};
  const Status taken =
      error(StatusCode::kAlreadyExists, path(version_key(id)),
            ": it is there already, and publications are never replaced; choose another number or "
            "another prefix");
  if (leads()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, there(deadline));
    for (const PublicationId& other : ids) {
      if (other.kind != id.kind || other.version < id.version) continue;
      if (other == id) return taken;
      return error(StatusCode::kInvalidArgument, store_->name(), ": ", to_string(id), " after ",
                   to_string(other), ": versions ascend");
    }
    pending.attempt = random_hash128().low;
    const nlohmann::json json{{"attempt", pending.attempt}, {"session", session_}};
    DRIFTLESS_RETURN_IF_ERROR(store_->put(concat(kAttemptsPrefix, publication_name(id), ".json"),
                                          bytes_of(json.dump() + "\n"), false, deadline));
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto there_now, read_version(id, deadline));
    if (there_now) return taken;
    DRIFTLESS_ASSIGN_OR_RETURN(pending.attempt, read_attempt(id, deadline));
  }
  pending_ = pending;
  return {};
}

Result<std::unique_ptr<File>> Sender::create_part(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  const std::string key = concat(parts_prefix(pending_->id, pending_->attempt), name);
  for (const auto& part : parts_) {
    if (part->path() != path(key)) continue;
    return error(StatusCode::kAlreadyExists, part->path(), ": the part is there already");
  }
  parts_.push_back(std::make_shared<PartUpload>(store_, options_, senders_, name, key));
  return make_part_file(parts_.back());
}

Result<std::vector<PartReceipt>> Sender::flush(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
  for (const auto& part : parts_) DRIFTLESS_RETURN_IF_ERROR(part->check_finished());
  std::vector<PartReceipt> receipts(parts_.size());
  const auto finish = [&](std::size_t i, unsigned) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(parts_[i]->finish(deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(receipts[i], parts_[i]->receipt());
    receipts[i].rank = rank_;
    receipts[i].locator = pending_->attempt;
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(parts_.size(), std::max(1U, options_.streams), finish));
  return receipts;
}

Status Sender::seal(std::string_view manifest, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("sealing"));
  DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
  const PublicationId id = pending_->id;
  const std::string key = version_key(id);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("sealing ", path(key))));
  if (manifest.size() > kMaxTextBytes / 2) {
    return error(StatusCode::kUnsupported, path(key), ": a manifest of ", manifest.size(),
                 " bytes, at most ", kMaxTextBytes / 2, " are allowed");
  }
  const std::string text = version_text({std::string(manifest), pending_->attempt});
  if (!conditional_) {
    DRIFTLESS_RETURN_IF_ERROR(check_session(deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> other,
                               read_version(id, deadline));
    if (other) return fenced(concat(key, " is there already"));
  }
  const Status put = store_->put(key, bytes_of(text), conditional_, deadline);
  if (put.code() == StatusCode::kAlreadyExists) {
    // Ours, if the answer to the first try was lost.
    const auto now = store_->get_text(key, kMaxTextBytes, deadline);
    DRIFTLESS_RETURN_IF_ERROR(now.status());
    if (*now != text) return fenced(concat(key, " is another publisher's"));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(put);
  }
  pending_.reset();
  parts_.clear();
  // Only readers that cannot list need it; the next seal writes it again.
  const Status ignored = write_index(deadline);
  return {};
}

Status Sender::write_index(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, there(deadline));
  nlohmann::json versions = nlohmann::json::array();
  for (const PublicationId& id : ids) versions.push_back(publication_name(id));
  const nlohmann::json json{{"format", 1}, {"versions", versions}};
  return store_->put(std::string(kIndexKey), bytes_of(json.dump() + "\n"), false, deadline);
}

Status Sender::abort() {
  if (!pending_.has_value()) return {};
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const auto parts = std::exchange(parts_, {});
  for (const auto& part : parts) part->drop();
  if (!leads()) return {};  // what lies there is removed by the leader
  return remove_below(parts_prefix(pending.id, pending.attempt), soon());
}

Result<std::optional<Hash128>> Sender::published(const PublicationId& id,
                                                 const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                             read_version(id, deadline));
  if (!version) return std::optional<Hash128>();
  return std::optional(xxh3_128(version->manifest));
}

// Alive is who changed its object within the patience, by our own clock.
Result<std::vector<shared_fs::ReceiverWatch::Receiver>> Sender::alive() {
  const Deadline deadline = soon();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kReceiversPrefix), deadline));
  std::vector<Result<std::string>> texts(objects.size(), Result<std::string>(std::string()));
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      objects.size(), std::max(1U, options_.streams), [&](std::size_t i, unsigned) -> Status {
        texts[i] = store_->get_text(objects[i].key, kMaxSmallBytes, deadline);
        return {};
      }));
  const auto now = Deadline::Clock::now();
  std::map<std::string, Seen> seen;
  std::vector<shared_fs::ReceiverWatch::Receiver> found;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const std::string& key = objects[i].key;
    if (texts[i].status().code() == StatusCode::kNotFound) continue;  // it left meanwhile
    DRIFTLESS_RETURN_IF_ERROR(texts[i].status());
    const Hash128 content = xxh3_128(*texts[i]);
    const auto before = seen_.find(key);
    const bool same = before != seen_.end() && before->second.content == content;
    seen[key] = {content, same ? before->second.at : now};
    if (now - seen[key].at > options_.patience) continue;
    std::string_view id = std::string_view(key).substr(kReceiversPrefix.size());
    id = id.substr(0, id.rfind(".json"));
    Result<ReceiverReport> report = shared_fs::receiver_from_json(*texts[i], id);
    shared_fs::ReceiverWatch::Receiver receiver;
    receiver.readable = report.ok();
    receiver.report = report.ok() ? std::move(*report) : ReceiverReport{std::string(id), 0, ""};
    found.push_back(std::move(receiver));
  }
  seen_ = std::move(seen);
  return found;
}

Result<std::vector<ReceiverReport>> Sender::receivers() {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("asking for the receivers"));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<shared_fs::ReceiverWatch::Receiver> found, alive());
  std::vector<ReceiverReport> reports;
  for (auto& receiver : found) reports.push_back(std::move(receiver.report));
  return reports;
}

Result<std::vector<PublicationId>> Sender::prune(std::uint64_t version) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("pruning"));
  const Deadline deadline = soon();
  DRIFTLESS_RETURN_IF_ERROR(check_session(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto found, alive());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kVersionsPrefix), deadline));
  std::vector<PublicationId> removed;
  for (const PublicationId& id : shared_fs::prunable(publications(objects), version, found)) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> object,
                               read_version(id, deadline));
    // The name stays taken: a publisher that wakes up late must not find it free.
    DRIFTLESS_RETURN_IF_ERROR(store_->put(version_key(id), {}, false, deadline));
    if (object)
      DRIFTLESS_RETURN_IF_ERROR(remove_below(parts_prefix(id, object->attempt), deadline));
    removed.push_back(id);
  }
  for (const ObjectInfo& object : objects) {
    const auto id = parse_version_key(object.key);
    if (id && object.size_bytes == 0 && id->version + kTakenNames < version) {
      DRIFTLESS_RETURN_IF_ERROR(store_->remove(object.key, deadline));
    }
  }
  if (!removed.empty()) const Status ignored = write_index(deadline);
  return removed;
}

}  // namespace
}  // namespace object_store

Result<std::unique_ptr<SendRoad>> make_object_store_sender(std::shared_ptr<ObjectStore> store,
                                                           const ObjectStoreOptions& options,
                                                           unsigned rank, unsigned ranks) {
  if (rank >= ranks) {
    return error(StatusCode::kInvalidArgument, store->name(), ": rank ", rank, " of ", ranks);
  }
  return std::unique_ptr<SendRoad>(
      std::make_unique<object_store::Sender>(std::move(store), options, rank));
}

}  // namespace driftless
