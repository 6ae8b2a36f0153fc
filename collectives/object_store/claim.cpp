// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/claim.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "collectives/object_store/http_client.h"
#include "core/host_name.h"

namespace driftless::object_store {
namespace {

// A publisher that starts at the same time removes the probes that it finds.
constexpr unsigned kMostProbes = 5;

}  // namespace

Result<NamedPublisher> read_publisher(ObjectStore& store, const Deadline& deadline) {
  const auto text = store.get_text(std::string(kPublisherKey), kMaxSmallBytes, deadline);
  if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, false);
  const auto field = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string(kNobody);
  };
  return NamedPublisher{field("session"), field("process")};
}

Result<std::string> read_session(ObjectStore& store, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(NamedPublisher now, read_publisher(store, deadline));
  return std::move(now.session);
}

Claim::Claim(std::shared_ptr<ObjectStore> store)
    : store_(std::move(store)), session_(to_hex(random_hash128())) {}

Status Claim::fence(std::string_view why) {
  fenced_ = error(StatusCode::kWrongRun, store_->name(), ": ", why,
                  ". Another publisher has taken over; this one (session ", session_,
                  ") must stop. Start it again once no other publishes there");
  return fenced_;
}

// Whether the store replaces an object only for a request with its tag.
Result<bool> Claim::probe_replace(const std::string& key, const Deadline& deadline) {
  const auto removed = [&](const Status& status) -> Status {
    if (status.code() != StatusCode::kNotFound) return status;
    return error(StatusCode::kBusy, store_->name(),
                 ": another publisher is starting; start this one again");
  };
  const Status refused = store_->replace(key, bytes_of("3"), "\"not its tag\"", deadline);
  const StatusCode code = refused.code();
  if (code == StatusCode::kIo || code == StatusCode::kDeadlineExceeded ||
      code == StatusCode::kNotFound) {
    return removed(refused);
  }
  if (code != StatusCode::kAlreadyExists) return false;
  const Result<TaggedText> now = store_->get_tagged(key, kMaxSmallBytes, deadline);
  if (!now.ok()) return removed(now.status());
  const Status taken = store_->replace(key, bytes_of("4"), now->tag, deadline);
  if (taken.ok()) return true;
  if (taken.code() != StatusCode::kAlreadyExists) return removed(taken);
  // The store compares other tags than it returns, or the answer to the first attempt was lost.
  const Result<std::string> text = store_->get_text(key, kMaxSmallBytes, deadline);
  if (!text.ok()) return removed(text.status());
  return *text == "4";
}

Status Claim::probe(const Deadline& deadline) {
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (unsigned left = kMostProbes;; --left) {
    Status probed = probe_once(deadline);
    if (probed.code() != StatusCode::kBusy || left == 1 || !backoff.sleep(deadline)) return probed;
  }
}

Status Claim::probe_once(const Deadline& deadline) {
  const std::string key = concat(kProbePrefix, session_);
  // The name is unique: if it is taken, the answer to the first request was lost.
  const Status first = store_->put(key, bytes_of("1"), true, deadline);
  Status second = first.ok() ? store_->put(key, bytes_of("2"), true, deadline) : first;
  // Tries once more, because a publisher that starts at the same time removes leftovers.
  if (second.ok()) second = store_->put(key, bytes_of("2"), true, deadline);
  const bool refuses = second.code() == StatusCode::kAlreadyExists;
  // Distinguishes a store without conditions from one that accepts no writes: a web server can only
  // be read.
  if (second.code() == StatusCode::kUnsupported) {
    second = store_->put(key, bytes_of("2"), false, deadline);
  }
  if (!second.ok() && !refuses) return second;
  if (refuses) {
    DRIFTLESS_ASSIGN_OR_RETURN(replaces_, probe_replace(key, deadline));
  }
  DRIFTLESS_RETURN_IF_ERROR(store_->remove(key, deadline));
  if (refuses) return {};
  return error(StatusCode::kUnsupported, store_->name(),
               ": the store ignores If-None-Match, so two publishers could both win a version; "
               "use another store");
}

Status Claim::take(const Deadline& deadline) {
  const nlohmann::json json{{"session", session_},
                            {"process", concat("process ", getpid(), " on ", host_name())}};
  DRIFTLESS_RETURN_IF_ERROR(
      store_->put(std::string(kPublisherKey), bytes_of(json.dump() + "\n"), false, deadline));
  taken_ = true;
  return {};
}

Status Claim::check(const Deadline& deadline) {
  if (!taken_ || !fenced_.ok()) return fenced_;
  DRIFTLESS_ASSIGN_OR_RETURN(const NamedPublisher now, read_publisher(*store_, deadline));
  if (now.session == session_) return {};
  return fence(concat(kPublisherKey, " names ", now.process, ", session ", now.session));
}

Result<bool> Claim::reserve(const PublicationId& id, const Deadline& deadline) {
  if (!replaces_) return true;
  const std::string key = version_key(id), what = concat(store_->name(), "/", key);
  const std::string text = reservation_text(session_);
  for (;;) {
    const Status put = store_->put(key, bytes_of(text), true, deadline);
    if (!put.ok() && put.code() != StatusCode::kAlreadyExists) return put;
    Result<TaggedText> now = store_->get_tagged(key, kMaxTextBytes, deadline);
    if (now.status().code() == StatusCode::kNotFound) continue;
    DRIFTLESS_RETURN_IF_ERROR(now.status());
    if (now->tag.empty()) return error(StatusCode::kCorrupt, what, ": came without an ETag");
    if (now->text == text) {
      kept_[id] = now->tag;
      return true;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const VersionObject version,
                               parse_version_text(std::move(now->text), what));
    if (version.reserved_by.empty()) return false;
    // Replaces the reservation of a session that this one has fenced. That session then cannot
    // seal, because it would need the tag that is replaced here.
    const Status replaced = store_->replace(key, bytes_of(text), now->tag, deadline);
    const StatusCode code = replaced.code();
    if (!replaced.ok() && code != StatusCode::kAlreadyExists && code != StatusCode::kNotFound) {
      return replaced;
    }
  }
}

Status Claim::put_version(const PublicationId& id, const std::string& text,
                          const Deadline& deadline) {
  const std::string key = version_key(id);
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    const auto kept = kept_.find(id);
    if (!replaces_) DRIFTLESS_RETURN_IF_ERROR(check(deadline));
    Status put = kept == kept_.end() ? store_->put(key, bytes_of(text), true, deadline)
                                     : store_->replace(key, bytes_of(text), kept->second, deadline);
    const bool taken = put.code() == StatusCode::kAlreadyExists ||
                       (kept != kept_.end() && put.code() == StatusCode::kNotFound);
    if (!taken) {
      if (put.ok()) kept_.erase(id);
      return put;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> now,
                               read_version(*store_, id, deadline));
    if (now && version_text(*now) == text) return {};  // the answer to the first attempt was lost
    if (!now || now->reserved_by.empty()) return fence(concat(key, " is another publisher's"));
    // Another session has reserved the name. Either it has fenced this session, or it reserved the
    // name before it noticed that this session had fenced it.
    DRIFTLESS_RETURN_IF_ERROR(check(deadline));
    DRIFTLESS_RETURN_IF_ERROR(reserve(id, deadline).status());
    if (!backoff.sleep(deadline)) return put.with_context("gave up");
  }
}

}  // namespace driftless::object_store
