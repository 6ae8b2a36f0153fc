// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/copies.h"

namespace driftless::object_store {

Status Copies::load(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> copies,
                             store_.list(std::string(kCopiesPrefix), "", deadline));
  for (const ObjectInfo& copy : copies) {
    const std::string key = copy.key.substr(kCopiesPrefix.size());
    if (key != kRunKey && !parse_version_key(key)) continue;  // others may lie there
    known_.insert(key);
    std::string text;
    if (copy.size_bytes > 0) {
      Result<std::string> read = store_.get_text(copy.key, kMaxTextBytes, deadline);
      if (read.status().code() == StatusCode::kNotFound) continue;
      DRIFTLESS_RETURN_IF_ERROR(read.status());
      text = std::move(*read);
    }
    DRIFTLESS_RETURN_IF_ERROR(put_back(key, text, deadline));
  }
  return {};
}

Status Copies::clear(const Deadline& deadline) {
  for (const std::string& key : std::exchange(known_, {})) {
    DRIFTLESS_RETURN_IF_ERROR(store_.remove(concat(kCopiesPrefix, key), deadline));
  }
  return {};
}

Status Copies::keep(const std::string& key, const std::string& text, const Deadline& deadline) {
  known_.insert(key);
  own_[key] = text;
  return store_.put(concat(kCopiesPrefix, key), bytes_of(text), false, deadline);
}

Status Copies::removed(const std::string& key, const Deadline& deadline) {
  if (!known_.contains(key)) return {};
  if (own_.contains(key)) own_[key].clear();
  return store_.put(concat(kCopiesPrefix, key), {}, false, deadline);
}

Status Copies::check(const Deadline& deadline) {
  for (const auto& [key, text] : own_) {
    DRIFTLESS_RETURN_IF_ERROR(put_back(key, text, deadline));
  }
  return {};
}

Status Copies::put_back(const std::string& key, const std::string& text, const Deadline& deadline) {
  const Result<std::string> now = store_.get_text(key, kMaxTextBytes, deadline);
  if (now.status().code() == StatusCode::kNotFound) return {};
  DRIFTLESS_RETURN_IF_ERROR(now.status());
  // An empty one was removed since, which its copy may not say yet.
  if (*now == text || now->empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(store_.put(key, bytes_of(text), false, deadline));
  report_ += concat(report_.empty() ? "" : ", ", store_.name(), "/", key);
  return {};
}

Status Copies::take_report() {
  if (report_.empty()) return {};
  return error(StatusCode::kIncomplete, std::exchange(report_, {}),
               ": a publisher that had been overtaken wrote over it; what was there was put back. "
               "This store has no conditions: see to it that one publisher is at work at a time. "
               "Rollouts that read it meanwhile take the next anchor");
}

}  // namespace driftless::object_store
