// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/receiver_objects.h"

#include "core/parallel.h"

namespace driftless::object_store {
namespace {

std::string id_in(std::string_view key) {
  key.remove_prefix(kReceiversPrefix.size());
  return std::string(key.substr(0, key.rfind(".json")));
}

}  // namespace

std::string receiver_key(std::string_view id) { return concat(kReceiversPrefix, id, ".json"); }

Result<std::vector<shared_fs::ReceiverWatch::Receiver>> ReceiverObjects::look(
    const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kReceiversPrefix), "", deadline));
  std::vector<Result<std::string>> texts(objects.size(), Result<std::string>(std::string()));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(objects.size(), streams_, [&](std::size_t i, unsigned) -> Status {
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
    const std::string id = id_in(key);
    left_.erase(id);
    if (now - seen[key].at > patience_) continue;
    Result<ReceiverReport> report = shared_fs::receiver_from_json(*texts[i], id);
    shared_fs::ReceiverWatch::Receiver receiver;
    receiver.readable = report.ok();
    receiver.report = report.ok() ? std::move(*report) : ReceiverReport{id, 0, ""};
    found.push_back(std::move(receiver));
  }
  for (const auto& [key, entry] : seen_) {
    if (!seen.contains(key)) left_.insert(id_in(key));
  }
  seen_ = std::move(seen);
  return found;
}

Status ReceiverObjects::clear(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store_->list(std::string(kReceiversPrefix), "", deadline));
  for (const ObjectInfo& object : objects) {
    DRIFTLESS_RETURN_IF_ERROR(store_->remove(object.key, deadline));
  }
  return {};
}

}  // namespace driftless::object_store
