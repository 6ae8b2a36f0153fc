// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/index.h"

#include <iterator>
#include <nlohmann/json.hpp>

#include "collectives/object_store/credentials.h"

namespace driftless {
namespace object_store {
namespace {

// Readers ignore unknown members.
constexpr int kFormat = 1;
// Longer than a publisher needs between reading its index and putting it.
constexpr std::chrono::milliseconds kLookAgain{500};

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

// The stored index, and its tag.
struct Found {
  Index index;
  std::string tag;
  Status parsed;  // not ok: the index is damaged
};
Result<std::optional<Found>> read_index(ObjectStore& store, const Deadline& deadline) {
  const std::string key(kIndexKey);
  Result<TaggedText> read = store.get_tagged(key, kMaxTextBytes, deadline);
  if (read.status().code() == StatusCode::kNotFound) return std::optional<Found>();
  DRIFTLESS_RETURN_IF_ERROR(read.status());
  Result<Index> index = parse_index(read->text, concat(store.name(), "/", key));
  // A damaged index is written again by a process that knows the versions.
  return std::optional(Found{index.ok() ? *index : Index(), std::move(read->tag), index.status()});
}

Status put_index(ObjectStore& store, const std::optional<Found>& found, bool conditional,
                 const Index& index, const Deadline& deadline) {
  const std::string key(kIndexKey), text = index_text(index);
  if (!conditional) return store.put(key, bytes_of(text), false, deadline);
  return found ? store.replace(key, bytes_of(text), found->tag, deadline)
               : store.put(key, bytes_of(text), true, deadline);
}

// How long the links of the index are still valid; 0: there are none, or they have expired.
std::chrono::seconds links_left(const std::optional<Found>& found) {
  if (!found || !found->index.links) return std::chrono::seconds(0);
  const auto left = left_until(found->index.links->signed_by.expires);
  return std::clamp<std::chrono::seconds>(left.value_or(std::chrono::seconds(0)),
                                          std::chrono::seconds(0), kLongestPresigned);
}

// Links of all objects that a reader of these versions needs.
Result<Links> make_links(ObjectStore& store, PartKeys& parts,
                         const std::set<PublicationId>& versions, std::chrono::seconds valid,
                         const Deadline& deadline) {
  std::vector<std::string> keys{std::string(kRunKey), std::string(kEndKey)};
  for (const PublicationId& id : versions) {
    DRIFTLESS_ASSIGN_OR_RETURN(auto of_version, parts.of(id, deadline));
    if (!of_version) continue;
    keys.push_back(version_key(id));
    std::ranges::move(*of_version, std::back_inserter(keys));
  }
  Links links;
  DRIFTLESS_ASSIGN_OR_RETURN(links.signed_by, store.presign(keys, valid, deadline));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    links.signatures.emplace(std::move(keys[i]), std::move(links.signed_by.signatures[i]));
  }
  links.signed_by.signatures.clear();
  return links;
}

// `known`, and the versions in the store. A listing of these may be out of date, so the names after
// the newest one are read, too.
Result<std::set<PublicationId>> versions_there(ObjectStore& store,
                                               const std::set<PublicationId>& known,
                                               const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                             store.list(std::string(kVersionsPrefix), "", deadline));
  std::set<PublicationId> found = known;
  for (const PublicationId& id : version_list(objects).there) found.insert(id);
  PublicationId next;
  if (!found.empty()) next.version = found.rbegin()->version;
  for (;;) {
    ++next.version;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                               read_version(store, next, deadline));
    if (!version || !version->reserved_by.empty()) return found;
    if (!version->removed) found.insert(next);
  }
}

// Another publisher wrote or removed the index since it was read.
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
  } catch (const nlohmann::json::exception&) {  // its message may contain a signature
    return error(StatusCode::kCorrupt, what, ": ", text.size(),
                 " bytes that are not a publisher's index");
  }
}

Status PartKeys::add(const PublicationId& id, const std::string& manifest) {
  if (!read_) {
    return error(StatusCode::kUnsupported, store_.name(), ": this process cannot read manifests");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PartReceipt> parts,
                             read_(manifest, concat(store_.name(), "/", version_key(id))));
  std::vector<std::string>& keys = known_[id];
  keys.clear();
  for (const PartReceipt& part : parts) keys.push_back(part_key(id, part));
  return {};
}

Result<std::optional<std::vector<std::string>>> PartKeys::of(const PublicationId& id,
                                                             const Deadline& deadline) {
  if (!known_.contains(id)) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionObject> version,
                               read_version(store_, id, deadline));
    if (!version || version->removed) return std::optional<std::vector<std::string>>();
    DRIFTLESS_RETURN_IF_ERROR(add(id, version->manifest));
  }
  return std::optional(known_[id]);
}

void PartKeys::keep(const std::set<PublicationId>& versions) {
  std::erase_if(known_, [&](const auto& each) { return !versions.contains(each.first); });
}

void IndexWriter::sealed(const PublicationId& id, const std::string& manifest) {
  if (presign_.count() == 0) return;
  // If this fails, write() reads the manifest again and reports why.
  const Status read = parts_.add(id, manifest);
}

Status IndexWriter::write(const std::set<PublicationId>& versions, const Deadline& deadline) {
  Status written = try_write(versions, deadline);
  due_ = !written.ok();
  return written;
}

Status IndexWriter::try_write(const std::set<PublicationId>& versions, const Deadline& deadline) {
  parts_.keep(versions);
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Found> found, read_index(store_, deadline));
    Index index{.session = claim_.session(), .versions = versions, .links = std::nullopt};
    const std::chrono::seconds valid = std::max(presign_, links_left(found));
    if (valid.count() > 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(index.links,
                                 make_links(store_, parts_, index.versions, valid, deadline));
    }
    // After this session's first index, an index of another session is a successor's.
    const bool ours = found && found->index.session == claim_.session();
    if (!ours || !claim_.replaces()) DRIFTLESS_RETURN_IF_ERROR(claim_.check(deadline));
    Status put = put_index(store_, found, claim_.replaces(), index, deadline);
    if (!claim_.replaces() || !overtaken(put)) return put;
    if (!backoff.sleep(deadline)) return put.with_context("gave up");
  }
}

}  // namespace object_store

std::string Presigned::url(const std::string& key, const std::string& signature) const {
  return concat(base, object_store::percent_encode(key, true), "?", query, signature);
}

namespace object_store {
namespace {

// Puts links into the index. False if another process wrote it meanwhile.
Result<bool> put_links(ObjectStore& store, PartKeys& parts, std::chrono::seconds valid,
                       const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::optional<Found> found, read_index(store, deadline));
  if (!found) {
    return error(StatusCode::kNotFound, store.name(), "/", kIndexKey,
                 ": there is none: a publisher writes it when it starts");
  }
  if (!found->parsed.ok()) {
    return found->parsed.with_context("damaged until the publisher's next version");
  }
  Index& index = found->index;
  DRIFTLESS_ASSIGN_OR_RETURN(index.versions, versions_there(store, index.versions, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(index.links,
                             make_links(store, parts, index.versions, valid, deadline));
  std::erase_if(index.versions, [&](const PublicationId& id) {  // the versions that were removed
    return !index.links->signatures.contains(version_key(id));
  });
  const Status put = put_index(store, found, !found->tag.empty(), index, deadline);
  if (overtaken(put)) return false;
  DRIFTLESS_RETURN_IF_ERROR(put);
  return true;
}

// On a store that ignores If-Match, a running publisher may have replaced our index, or we may have
// replaced a newer one of the publisher. Checks whether the index a moment later has links, and
// all versions.
Result<bool> links_stay(ObjectStore& store, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::set<PublicationId> there,
                             versions_there(store, {}, deadline));
  (void)Backoff(kLookAgain, kLookAgain).sleep(deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Found> found, read_index(store, deadline));
  if (!found || !found->parsed.ok() || !found->index.links) return false;
  const std::set<PublicationId>& listed = found->index.versions;
  return there.empty() || (!listed.empty() && listed.rbegin()->version >= there.rbegin()->version);
}

}  // namespace
}  // namespace object_store

Result<std::string> share_object_store(ObjectStore& store, const ReadParts& read,
                                       std::chrono::seconds valid, const Deadline& deadline) {
  using namespace object_store;
  const std::string key(kIndexKey);
  PartKeys parts(store, read);
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(bool done, put_links(store, parts, valid, deadline));
    if (done) {
      DRIFTLESS_ASSIGN_OR_RETURN(done, links_stay(store, deadline));
    }
    if (done) break;
    if (!backoff.sleep(deadline)) {
      return deadline.check(
          concat(store.name(), "/", key, ": another process replaced it after every write"));
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Presigned link, store.presign({&key, 1}, valid, deadline));
  return link.url(key, link.signatures.front());
}

}  // namespace driftless
