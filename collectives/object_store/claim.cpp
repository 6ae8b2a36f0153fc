// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/claim.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace driftless::object_store {

Claim::Claim(std::shared_ptr<ObjectStore> store, bool single_writer)
    : store_(std::move(store)), single_writer_(single_writer), session_(to_hex(random_hash128())) {}

Status Claim::fence(std::string_view why) {
  fenced_ = error(StatusCode::kWrongRun, store_->name(), ": ", why,
                  ". Another publisher has taken over; this one (session ", session_,
                  ") must stop. Start it again once no other publishes there");
  return fenced_;
}

Status Claim::probe(const Deadline& deadline) {
  const std::string key = concat(kAttemptsPrefix, "probe-", session_);
  const Status first = store_->put(key, bytes_of("1"), true, deadline);
  const Status second = first.ok() ? store_->put(key, bytes_of("2"), true, deadline) : first;
  conditional_ = first.ok() && second.code() == StatusCode::kAlreadyExists;
  if (conditional_ || second.ok()) {
    DRIFTLESS_RETURN_IF_ERROR(store_->remove(key, deadline));
  } else if (second.code() != StatusCode::kUnsupported) {
    return second;
  }
  if (conditional_ || single_writer_) return {};
  return error(StatusCode::kUnsupported, store_->name(),
               ": the store ignores If-None-Match, so two publishers could both win a version; "
               "use another store, or set road.single_writer: true if you see to it that there is "
               "one publisher");
}

Status Claim::take(const Deadline& deadline) {
  char host[256] = "?";
  (void)gethostname(host, sizeof(host) - 1);
  const nlohmann::json json{{"session", session_},
                            {"process", concat("process ", getpid(), " on ", host)}};
  DRIFTLESS_RETURN_IF_ERROR(
      store_->put(std::string(kPublisherKey), bytes_of(json.dump() + "\n"), false, deadline));
  taken_ = true;
  return {};
}

Status Claim::check(const Deadline& deadline) {
  if (!taken_ || !fenced_.ok()) return fenced_;
  const auto text = store_->get_text(std::string(kPublisherKey), kMaxSmallBytes, deadline);
  if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, false);
  const auto field = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string("nobody");
  };
  if (field("session") == session_) return {};
  return fence(concat(kPublisherKey, " names ", field("process"), ", session ", field("session")));
}

}  // namespace driftless::object_store
