// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "collectives/object_store/attempts.h"
#include "collectives/object_store/index.h"
#include "collectives/object_store/part_upload.h"
#include "collectives/object_store/receiver_objects.h"
#include "core/parallel.h"

namespace driftless {
namespace object_store {
namespace {

// How long seal() waits for the index of a visible version to be written; and the wait of a later
// retry.
constexpr std::chrono::milliseconds kIndexWait{10'000}, kIndexRetryWait{1'000};

class Sender final : public SendRoad {
 public:
  Sender(std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options, unsigned rank,
         unsigned ranks, ReadParts read)
      : store_(std::move(store)),
        options_(options),
        rank_(rank),
        ranks_(ranks),
        claim_(store_),
        attempts_(store_, options.streams),
        index_(*store_, claim_, std::move(read),
               std::chrono::ceil<std::chrono::seconds>(options.presign)),
        receivers_(store_, options),
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
  [[nodiscard]] std::vector<std::string> left() const override { return receivers_.left(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override;
  Result<std::uint64_t> highest_number() override;
  void progress() override;

 private:
  struct Pending {
    Attempt attempt;
    Deadline deadline;     // for its uploads
    bool sealing = false;  // its manifest was sent, so it may appear
  };

  [[nodiscard]] std::string path(std::string_view key) const {
    return concat(store_->name(), "/", key);
  }
  // The deadline of calls without their own.
  [[nodiscard]] Deadline soon() const { return Deadline::after(options_.request_timeout); }
  [[nodiscard]] Status check_leads(std::string_view what) const;
  [[nodiscard]] Status check_begun(std::string_view what) const;
  [[nodiscard]] Status announce_run(std::string_view run_info, const Deadline& deadline);
  [[nodiscard]] Status load_list(const Deadline& deadline);
  [[nodiscard]] Status reserve_names(const Deadline& deadline);
  [[nodiscard]] Status check_number(const PublicationId& id) const;
  [[nodiscard]] Result<std::uint64_t> begin_attempt(const PublicationId& id,
                                                    const Deadline& deadline);
  [[nodiscard]] Result<std::uint64_t> read_attempt(const PublicationId& id,
                                                   const Deadline& deadline);
  [[nodiscard]] Status put_manifest(const std::string& text, const Deadline& deadline);
  [[nodiscard]] Status write_index(std::chrono::milliseconds wait);

  const std::shared_ptr<ObjectStore> store_;
  const ObjectStoreOptions options_;
  const unsigned rank_, ranks_;
  Claim claim_;
  Attempts attempts_;
  IndexWriter index_;
  // Next retry of the index, if it is due.
  Deadline index_again_ = Deadline::after(std::chrono::milliseconds(0));
  ReceiverObjects receivers_;
  // [leader] The visible publications that this publisher knows of, and the newest numbers that
  // were ever used. Another publisher is detected when a name is already taken.
  bool list_loaded_ = false;
  bool began_ = false;  // run.json is from this session: nothing was published before
  std::set<PublicationId> there_;
  std::optional<std::uint64_t> newest_[2];  // by kind
  std::optional<std::uint64_t> returned_highest_;
  std::string leader_;  // [other ranks] the leader's session, from the first attempt found
  std::optional<Pending> pending_;
  std::vector<std::shared_ptr<PartUpload>> parts_;
  Senders senders_;  // last: ends before the members that its tasks use
};

Status Sender::check_leads(std::string_view what) const {
  if (rank_ == 0) return claim_.fenced();
  return error(StatusCode::kInvalidArgument, store_->name(), ": ", what, " is for rank 0, this is ",
               "rank ", rank_);
}

Status Sender::check_begun(std::string_view what) const {
  if (pending_.has_value()) return {};
  return error(StatusCode::kInvalidArgument, store_->name(), ": ", what, " on rank ", rank_,
               " without a begin()");
}

Status Sender::announce_run(std::string_view run_info, const Deadline& deadline) {
  const std::string key(kRunKey);
  Result<std::string> there = store_->get_text(key, kMaxTextBytes, deadline);
  if (there.status().code() == StatusCode::kNotFound) {
    // All reports are older than this run, which is not announced yet.
    DRIFTLESS_RETURN_IF_ERROR(receivers_.clear(deadline));
    const Status put = store_->put(key, bytes_of(run_info), true, deadline);
    began_ = put.ok();
    if (put.code() != StatusCode::kAlreadyExists) return put;
    // Another publisher put it, or this one did, and the answer was lost.
    there = store_->get_text(key, kMaxTextBytes, deadline);
  }
  DRIFTLESS_RETURN_IF_ERROR(there.status());
  if (*there == run_info) return {};
  return error(StatusCode::kAlreadyExists, path(key),
               ": the prefix belongs to another run; use another one, or empty this one");
}

Status Sender::announce(std::string_view run_info, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("announcing"));
  if (run_info.size() > kMaxTextBytes) {
    return error(StatusCode::kUnsupported, path(kRunKey), ": an announcement of ", run_info.size(),
                 " bytes, at most ", kMaxTextBytes, " are allowed");
  }
  DRIFTLESS_RETURN_IF_ERROR(claim_.probe(deadline));
  DRIFTLESS_RETURN_IF_ERROR(announce_run(run_info, deadline));
  DRIFTLESS_RETURN_IF_ERROR(claim_.take(deadline));
  // A store that ignores If-Match (Hugging Face buckets) may have let another publisher overwrite
  // run.json; from here on that publisher is fenced.
  if (!claim_.replaces()) DRIFTLESS_RETURN_IF_ERROR(announce_run(run_info, deadline));
  list_loaded_ = false;
  DRIFTLESS_RETURN_IF_ERROR(reserve_names(deadline));
  DRIFTLESS_RETURN_IF_ERROR(claim_.check(deadline));
  // From here on fenced publishers cannot write the index. It must list what they sealed before.
  DRIFTLESS_RETURN_IF_ERROR(load_list(deadline));
  if (began_ && !there_.empty()) {
    return claim_.fence(
        concat(to_string(*there_.begin()), " appeared while this publisher began a run"));
  }
  DRIFTLESS_RETURN_IF_ERROR(index_.write(there_, deadline));
  return attempts_.clear(deadline);
}

// Takes the names of the next version and of an anchor of the newest one. A fenced publisher may
// have passed its last check of publisher.json and be about to seal either: it then finds the name
// taken.
Status Sender::reserve_names(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(load_list(deadline));
  auto& newest = newest_[static_cast<std::size_t>(PublicationKind::kVersion)];
  for (;;) {
    const PublicationId next{newest.value_or(0) + 1, PublicationKind::kVersion};
    DRIFTLESS_ASSIGN_OR_RETURN(const bool reserved, claim_.reserve(next, deadline));
    if (reserved) break;
    newest = next.version;  // sealed since, or missing from the listing
    list_loaded_ = false;
  }
  if (returned_highest_ && newest.value_or(0) > *returned_highest_) {
    return error(StatusCode::kBusy, store_->name(), ": version ", *newest,
                 " was published while this publisher was starting; start it again");
  }
  const PublicationId anchor{newest.value_or(0), PublicationKind::kAnchor};
  return claim_.reserve(anchor, deadline).status();
}

Status Sender::load_list(const Deadline& deadline) {
  if (list_loaded_) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kVersionsPrefix), "", deadline));
  const VersionList list = version_list(objects);
  there_ = {list.there.begin(), list.there.end()};
  for (const auto& ids : {list.there, list.removed}) {
    for (const PublicationId& id : ids) {
      auto& newest = newest_[static_cast<std::size_t>(id.kind)];
      newest = std::max(newest.value_or(0), id.version);
    }
  }
  list_loaded_ = true;
  return {};
}

Result<std::uint64_t> Sender::highest_number() {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("asking for the highest number"));
  const Deadline deadline = soon();
  DRIFTLESS_RETURN_IF_ERROR(load_list(deadline));
  auto& newest = newest_[static_cast<std::size_t>(PublicationKind::kVersion)];
  for (;;) {  // a listing may lack recent objects
    const PublicationId next{newest.value_or(0) + 1, PublicationKind::kVersion};
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                               read_version(*store_, next, deadline));
    if (!version || !version->reserved_by.empty()) break;
    newest = next.version;
    list_loaded_ = false;
  }
  returned_highest_ = newest.value_or(0);
  return *returned_highest_;
}

Status Sender::check_number(const PublicationId& id) const {
  const auto& newest = newest_[static_cast<std::size_t>(id.kind)];
  if (!newest || id.version > *newest) return {};
  if (id.version == *newest || there_.contains(id)) {
    return error(StatusCode::kAlreadyExists, path(version_key(id)),
                 ": it was published already, and a number is used once; choose another number or "
                 "another prefix");
  }
  return error(StatusCode::kInvalidArgument, store_->name(), ": ", to_string(id), " after ",
               to_string(PublicationId{*newest, id.kind}), ": versions ascend");
}

// Writes the number of this attempt's parts, which the other ranks read. It is stored by session,
// so that a fenced leader which resumes late does not direct the ranks of its successor to parts
// that will be removed.
Result<std::uint64_t> Sender::begin_attempt(const PublicationId& id, const Deadline& deadline) {
  const std::uint64_t number = random_hash128().low;
  if (ranks_ == 1) return number;
  const nlohmann::json json{{"attempt", number}};
  DRIFTLESS_RETURN_IF_ERROR(store_->put(attempt_key(id, claim_.named_session()),
                                        bytes_of(json.dump() + "\n"), false, deadline));
  return number;
}

Result<std::uint64_t> Sender::read_attempt(const PublicationId& id, const Deadline& deadline) {
  Backoff backoff(options_.poll_first, options_.poll_longest);
  Waiting waiting;
  const auto whom = [&] {
    return concat(store_->name(), ": rank ", rank_, " waits for rank 0 to begin ", to_string(id));
  };
  do {
    std::string leader = leader_;
    if (leader.empty()) {  // the leader may not have announced itself yet
      DRIFTLESS_ASSIGN_OR_RETURN(leader, read_session(*store_, deadline));
    }
    const auto text = store_->get_text(attempt_key(id, leader), kMaxSmallBytes, deadline);
    if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
    const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, false);
    if (json.is_object() && json.contains("attempt") && json["attempt"].is_number_unsigned()) {
      leader_ = std::move(leader);
      return json["attempt"].get<std::uint64_t>();
    }
  } while (waiting.sleep(backoff, deadline, whom));
  return deadline.check(whom());
}

Status Sender::begin(const PublicationId& id, const Deadline& deadline) {
  const Status ignored = abort();
  DRIFTLESS_RETURN_IF_ERROR(claim_.fenced());
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(store_->name(), ": beginning ", to_string(id))));
  Pending pending{.attempt = {id, 0}, .deadline = deadline};
  if (rank_ == 0) {
    DRIFTLESS_RETURN_IF_ERROR(claim_.check(deadline));
    DRIFTLESS_RETURN_IF_ERROR(load_list(deadline));
    DRIFTLESS_RETURN_IF_ERROR(check_number(id));
    DRIFTLESS_ASSIGN_OR_RETURN(pending.attempt.number, begin_attempt(id, deadline));
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto there_now, read_version(*store_, id, deadline));
    if (there_now && there_now->reserved_by.empty()) {
      return error(StatusCode::kAlreadyExists, path(version_key(id)), ": it was published already");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(pending.attempt.number, read_attempt(id, deadline));
  }
  pending_ = pending;
  return {};
}

Result<std::unique_ptr<File>> Sender::create_part(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  const std::string key = concat(parts_prefix(pending_->attempt), name);
  for (const auto& part : parts_) {
    if (part->path() != path(key)) continue;
    return error(StatusCode::kAlreadyExists, part->path(), ": the part is there already");
  }
  parts_.push_back(
      std::make_shared<PartUpload>(store_, options_, senders_, name, key, pending_->deadline));
  return make_part_file(parts_.back());
}

Result<std::vector<PartReceipt>> Sender::flush(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
  for (const auto& part : parts_) DRIFTLESS_RETURN_IF_ERROR(part->check_finished());
  std::vector<PartReceipt> receipts(parts_.size());
  const auto finish = [&](std::size_t i, unsigned) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(receipts[i], parts_[i]->finish(deadline));
    receipts[i].rank = rank_;
    receipts[i].locator = pending_->attempt.number;
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(parts_.size(), options_.streams, finish));
  return receipts;
}

Status Sender::put_manifest(const std::string& text, const Deadline& deadline) {
  pending_->sealing = true;
  Status put = claim_.put_version(pending_->attempt.id, text, deadline);
  if (put.code() == StatusCode::kWrongRun) pending_->sealing = false;
  return put;
}

Status Sender::seal(std::string_view manifest, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("sealing"));
  DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
  const Attempt attempt = pending_->attempt;
  const std::string key = version_key(attempt.id);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("sealing ", path(key))));
  if (manifest.size() > kMaxTextBytes / 2) {
    return error(StatusCode::kUnsupported, path(key), ": a manifest of ", manifest.size(),
                 " bytes, at most ", kMaxTextBytes / 2, " are allowed");
  }
  const VersionObject version{.manifest = std::string(manifest), .attempt = attempt.number};
  const std::string text = version_text(version);
  DRIFTLESS_RETURN_IF_ERROR(put_manifest(text, deadline));
  pending_.reset();
  parts_.clear();
  there_.insert(attempt.id);
  newest_[static_cast<std::size_t>(attempt.id.kind)] = attempt.id.version;
  index_.sealed(attempt.id, version.manifest);
  // The version is visible, whatever the result of these calls.
  const Status cleared = attempts_.decided(attempt, Deadline::after(kIndexWait));
  Status indexed = write_index(kIndexWait);
  if (indexed.code() == StatusCode::kWrongRun) return {};  // fenced: every further call returns it
  return indexed;
}

// Readers that cannot list find a version only through the index.
Status Sender::write_index(std::chrono::milliseconds wait) {
  Status written = index_.write(there_, Deadline::after(wait));
  index_again_ = Deadline::after(kIndexWait);
  if (written.ok() || written.code() == StatusCode::kWrongRun) return written;
  return error(StatusCode::kIncomplete, path(kIndexKey),
               " is not as new as the versions: ", written.message(),
               ". Rollouts whose road.object_store.url is http(s):// do not see the newest "
               "version. The publisher retries from time to time, with the next version, and at "
               "the end");
}

void Sender::progress() {
  if (rank_ != 0 || !index_.due() || !claim_.fenced().ok() || !index_again_.expired()) return;
  const Status ignored = write_index(kIndexRetryWait);
}

Status Sender::abort() {
  if (!pending_.has_value()) return {};
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const auto parts = std::exchange(parts_, {});
  for (const auto& part : parts) part->drop();
  if (rank_ != 0) return {};  // the leader removes the parts
  return attempts_.give_up(pending.attempt, !pending.sealing, soon());
}

Result<std::optional<Hash128>> Sender::published(const PublicationId& id,
                                                 const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                             read_version(*store_, id, deadline));
  if (!version || version->removed) return std::optional<Hash128>();
  return std::optional(xxh3_128(version->manifest));
}

Result<std::vector<ReceiverReport>> Sender::receivers() {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("asking for the receivers"));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<shared_fs::ReceiverWatch::Receiver> found,
                             receivers_.look(soon()));
  std::vector<ReceiverReport> reports;
  for (auto& receiver : found) reports.push_back(std::move(receiver.report));
  return reports;
}

Result<std::vector<PublicationId>> Sender::prune(std::uint64_t version) {
  DRIFTLESS_RETURN_IF_ERROR(check_leads("pruning"));
  const Deadline deadline = soon();
  DRIFTLESS_RETURN_IF_ERROR(load_list(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto found, receivers_.look(deadline));
  const auto old = shared_fs::prunable(std::vector(there_.begin(), there_.end()), version, found);
  DRIFTLESS_RETURN_IF_ERROR(claim_.check(deadline));
  std::vector<PublicationId> removed;
  for (const PublicationId& id : old) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> object,
                               read_version(*store_, id, deadline));
    // The name stays taken: a fenced publisher that resumes late must not find it free.
    DRIFTLESS_RETURN_IF_ERROR(store_->put(version_key(id), {}, false, deadline));
    there_.erase(id);
    if (object && !object->removed) {
      DRIFTLESS_RETURN_IF_ERROR(attempts_.remove_parts({id, object->attempt}, deadline));
    }
    removed.push_back(id);
  }
  DRIFTLESS_RETURN_IF_ERROR(attempts_.forbid_up_to(version, deadline));
  if (!removed.empty() || index_.due()) {
    const Status indexed = write_index(kIndexWait);
    // If versions were removed, a failure is no error: the index stays due and is retried.
    if (removed.empty()) DRIFTLESS_RETURN_IF_ERROR(indexed);
  }
  return removed;
}

}  // namespace
}  // namespace object_store

Result<std::unique_ptr<SendRoad>> make_object_store_sender(std::shared_ptr<ObjectStore> store,
                                                           const ObjectStoreOptions& options,
                                                           unsigned rank, unsigned ranks,
                                                           ReadParts read) {
  if (rank >= ranks) {
    return error(StatusCode::kInvalidArgument, store->name(), ": rank ", rank, " of only ", ranks);
  }
  return std::unique_ptr<SendRoad>(std::make_unique<object_store::Sender>(
      std::move(store), options, rank, ranks, std::move(read)));
}

}  // namespace driftless
