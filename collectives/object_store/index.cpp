// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/index.h"

#include <nlohmann/json.hpp>

#include "collectives/object_store/http_client.h"

namespace driftless {
namespace object_store {
namespace {

// Readers pass over what they do not know.
constexpr int kFormat = 1;

nlohmann::json links_json(const Links& links) {
  return {{"base", links.signed_by.base},
          {"query", links.signed_by.query},
          {"expires", links.signed_by.expires},
          {"signatures", links.signatures}};
}

Links parse_links(const nlohmann::json& json) {
  Links links;
  links.signed_by.base = json.at("base").get<std::string>();
  links.signed_by.query = json.at("query").get<std::string>();
  links.signed_by.expires = json.at("expires").get<std::string>();
  links.signatures = json.at("signatures").get<std::map<std::string, std::string>>();
  return links;
}

// What of the index is there, and its tag.
struct Found {
  Index index;
  std::string tag;
  Status parsed;  // not ok: it is damaged
};
Result<std::optional<Found>> read_index(ObjectStore& store, const Deadline& deadline) {
  const std::string key(kIndexKey);
  Result<TaggedText> read = store.get_tagged(key, kMaxTextBytes, deadline);
  if (read.status().code() == StatusCode::kNotFound) return std::optional<Found>();
  DRIFTLESS_RETURN_IF_ERROR(read.status());
  Result<Index> index = parse_index(read->text, concat(store.name(), "/", key));
  // One that is damaged is written anew, by who knows the versions.
  return std::optional(Found{index.ok() ? *index : Index(), std::move(read->tag), index.status()});
}

Status put_index(ObjectStore& store, const std::optional<Found>& found, bool conditional,
                 const Index& index, const Deadline& deadline) {
  const std::string key(kIndexKey), text = index_text(index);
  if (!conditional) return store.put(key, bytes_of(text), false, deadline);
  return found ? store.replace(key, bytes_of(text), found->tag, deadline)
               : store.put(key, bytes_of(text), true, deadline);
}

// Another one was written or removed since it was read.
bool overtaken(const Status& put) {
  return put.code() == StatusCode::kAlreadyExists || put.code() == StatusCode::kNotFound;
}

}  // namespace

std::optional<std::string> Links::url(const std::string& key) const {
  const auto found = signatures.find(key);
  if (found == signatures.end()) return std::nullopt;
  return signed_by.url(key, found->second);
}

std::string index_text(const Index& index) {
  nlohmann::json versions = nlohmann::json::array();
  for (const PublicationId& id : index.versions) versions.push_back(publication_name(id));
  nlohmann::json json{{"format", kFormat}, {"session", index.session}, {"versions", versions}};
  if (index.links) json["links"] = links_json(*index.links);
  return json.dump() + "\n";
}

Result<Index> parse_index(const std::string& text, std::string_view what) {
  try {
    const auto json = nlohmann::json::parse(text);
    Index index;
    index.session = json.value("session", "");
    for (const auto& each : json.at("versions")) {
      const auto id = parse_publication_name(each.get_ref<const std::string&>());
      if (id) index.versions.insert(*id);
    }
    if (json.contains("links")) index.links = parse_links(json["links"]);
    return index;
  } catch (const nlohmann::json::exception&) {  // its text may hold a signature
    return error(StatusCode::kCorrupt, what, ": ", text.size(),
                 " bytes that are not a publisher's index");
  }
}

Result<Links> make_links(ObjectStore& store, const std::set<PublicationId>& versions,
                         std::chrono::seconds valid, const Deadline& deadline) {
  std::vector<std::string> keys{std::string(kRunKey), std::string(kEndKey)};
  for (const PublicationId& id : versions) keys.push_back(version_key(id));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> parts,
                             store.list(std::string(kPartsPrefix), "", deadline));
  for (const ObjectInfo& part : parts) {
    const auto attempt = parse_part_key(part.key);
    if (attempt && versions.contains(attempt->id)) keys.push_back(part.key);
  }
  Links links;
  DRIFTLESS_ASSIGN_OR_RETURN(links.signed_by, store.presign(keys, valid, deadline));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    links.signatures.emplace(std::move(keys[i]), std::move(links.signed_by.signatures[i]));
  }
  links.signed_by.signatures.clear();
  return links;
}

Status write_index(ObjectStore& store, Claim& claim, const std::set<PublicationId>& versions,
                   std::chrono::seconds presign, const Deadline& deadline) {
  Index index{.session = claim.session(), .versions = versions, .links = std::nullopt};
  if (presign.count() > 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(index.links, make_links(store, versions, presign, deadline));
  }
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Found> found, read_index(store, deadline));
    // After this one's first, every other session's is a successor's.
    const bool own = found && found->index.session == claim.session();
    if (!own || !claim.replaces()) DRIFTLESS_RETURN_IF_ERROR(claim.check(deadline));
    const Status put = put_index(store, found, claim.replaces(), index, deadline);
    if (!claim.replaces() || !overtaken(put)) return put;
    if (!backoff.sleep(deadline)) return put.with_context("gave up");
  }
}

}  // namespace object_store

std::string Presigned::url(const std::string& key, const std::string& signature) const {
  return concat(base, object_store::percent_encode(key, true), "?", query, signature);
}

Result<std::string> share_object_store(ObjectStore& store, std::chrono::seconds valid,
                                       const Deadline& deadline) {
  using namespace object_store;
  const std::string key(kIndexKey);
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::optional<Found> found, read_index(store, deadline));
    if (!found) {
      return error(StatusCode::kNotFound, store.name(), "/", key,
                   ": there is none: a publisher writes it when it starts");
    }
    if (!found->parsed.ok()) {
      return found->parsed.with_context("the next version of the publisher writes it anew");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(found->index.links,
                               make_links(store, found->index.versions, valid, deadline));
    // A publisher may be at work: what it wrote meanwhile is looked at again.
    const Status put = put_index(store, found, true, found->index, deadline);
    if (overtaken(put) && backoff.sleep(deadline)) continue;
    DRIFTLESS_RETURN_IF_ERROR(put);
    DRIFTLESS_ASSIGN_OR_RETURN(const Presigned link, store.presign({&key, 1}, valid, deadline));
    return link.url(key, link.signatures.front());
  }
}

}  // namespace driftless
