// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/attempts.h"

#include <map>

#include "core/parallel.h"

namespace driftless::object_store {

Status Attempts::remove_below(const std::string& prefix, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<ObjectInfo> objects, store_->list(prefix, "", deadline));
  if (prefix == kAttemptsPrefix) {
    std::erase_if(objects, [](const ObjectInfo& object) { return !is_attempt_key(object.key); });
  }
  return parallel_for(objects.size(), streams_, [&](std::size_t i, unsigned) {
    return store_->remove(objects[i].key, deadline);
  });
}

Status Attempts::remove_parts(const Attempt& attempt, const Deadline& deadline) {
  return remove_below(parts_prefix(attempt), deadline);
}

Status Attempts::clear(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(store_->drop_uploads(std::string(kPartsPrefix), deadline));
  DRIFTLESS_RETURN_IF_ERROR(remove_below(std::string(kAttemptsPrefix), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kPartsPrefix), "", deadline));
  std::map<PublicationId, std::set<Attempt>> found;
  for (const ObjectInfo& object : objects) {
    if (const auto attempt = parse_part_key(object.key)) found[attempt->id].insert(*attempt);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> versions,
                             store_->list(std::string(kVersionsPrefix), "", deadline));
  const VersionList list = version_list(versions);
  for (const auto& [id, attempts] : found) {
    // The usual case, which needs no request: the publication is visible, and these are its parts.
    if (attempts.size() == 1 && std::ranges::binary_search(list.there, id)) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                               read_version(*store_, id, deadline));
    for (const Attempt& attempt : attempts) {
      if (!version) {
        open_.insert(attempt);
      } else if (version->removed || version->attempt != attempt.number) {
        DRIFTLESS_RETURN_IF_ERROR(remove_parts(attempt, deadline));
      }
    }
  }
  return {};
}

Status Attempts::give_up(const Attempt& attempt, bool certain, const Deadline& deadline) {
  open_.insert(attempt);  // another rank may still be writing
  return certain ? remove_parts(attempt, deadline) : Status();
}

Status Attempts::decided(const Attempt& winner, const Deadline& deadline) {
  for (auto at = open_.begin(); at != open_.end();) {
    if (at->id != winner.id) {
      ++at;
      continue;
    }
    if (*at != winner) DRIFTLESS_RETURN_IF_ERROR(remove_parts(*at, deadline));
    at = open_.erase(at);
  }
  return {};
}

Status Attempts::forbid_up_to(std::uint64_t version, const Deadline& deadline) {
  while (!open_.empty() && open_.begin()->id.version <= version) {
    const Attempt attempt = *open_.begin();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> now,
                               read_version(*store_, attempt.id, deadline));
    if (!now) {
      const Status taken = store_->put(version_key(attempt.id), {}, true, deadline);
      if (taken.code() == StatusCode::kAlreadyExists) continue;  // the loop reads it again
      DRIFTLESS_RETURN_IF_ERROR(taken);
    }
    const bool sealed = now && !now->removed && now->attempt == attempt.number;
    if (!sealed) DRIFTLESS_RETURN_IF_ERROR(remove_parts(attempt, deadline));
    open_.erase(open_.begin());
  }
  return {};
}

}  // namespace driftless::object_store
