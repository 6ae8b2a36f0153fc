// SPDX-License-Identifier: Apache-2.0
// index.json lists the held publications, for readers that cannot list the store. The publisher
// rewrites it with every version. It may contain presigned links to every object that a reader
// needs, for readers without credentials. Links stay until they expire. A process that rewrites the
// file before that adds links to new objects, which expire at the same time.
//
//   {"format":1, "session":"<publisher>", "versions":["0000000000000000007.version", ...],
//    "links":{"base":"https://host/bucket/prefix/", "query":"X-Amz-...&X-Amz-Signature=",
//             "expires":"2026-01-31T12:00:00Z", "signatures":{"run.json":"...", ...}}}
#pragma once

#include <map>
#include <set>

#include "collectives/object_store/claim.h"

namespace driftless::object_store {

struct Links {
  Presigned signed_by;  // without its signatures
  std::map<std::string, std::string> signatures;

  // Empty if there is no link to the key.
  [[nodiscard]] std::optional<std::string> url(const std::string& key) const;
};

struct Index {
  std::string session;  // of the publisher that wrote it; empty in files of older releases
  std::set<PublicationId> versions;
  std::optional<Links> links;
};
[[nodiscard]] std::string index_text(const Index& index);
// kCorrupt, naming `what`, if the text is not an index.
[[nodiscard]] Result<Index> parse_index(const std::string& text, std::string_view what);

// Determines the objects that hold the parts of a version. It reads the manifest, because a listing
// may be out of date, and caches the result. One thread.
class PartKeys {
 public:
  // `store` must outlive it.
  PartKeys(ObjectStore& store, ReadParts read) : store_(store), read_(std::move(read)) {}

  // Adds the manifest of a version.
  [[nodiscard]] Status add(const PublicationId& id, const std::string& manifest);
  // The keys of a version's parts; empty if the version no longer exists. Reads the manifest if it
  // is not cached.
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> of(const PublicationId& id,
                                                                   const Deadline& deadline);
  // Drops all versions but these from the cache.
  void keep(const std::set<PublicationId>& versions);

 private:
  ObjectStore& store_;
  const ReadParts read_;
  std::map<PublicationId, std::vector<std::string>> known_;
};

// Writes the index of one publisher. One thread.
class IndexWriter {
 public:
  // `presign`: the validity of the links in every index that it writes. 0: it makes no links of its
  // own, and only continues those of an earlier index until they expire. `store` and `claim` must
  // outlive it.
  IndexWriter(ObjectStore& store, Claim& claim, ReadParts read, std::chrono::seconds presign)
      : store_(store), claim_(claim), parts_(store, std::move(read)), presign_(presign) {}

  // Writes the index. A fenced publisher finds its successor's index in place of the one that it
  // read, and gets kWrongRun: an old list never replaces a newer one. On a store without If-Match
  // it reads publisher.json just before.
  [[nodiscard]] Status write(const std::set<PublicationId>& versions, const Deadline& deadline);
  // Records a sealed version, so that its parts need not be looked up.
  void sealed(const PublicationId& id, const std::string& manifest);
  // Whether the last write() failed, so that the stored index is out of date.
  [[nodiscard]] bool due() const { return due_; }

 private:
  [[nodiscard]] Status try_write(const std::set<PublicationId>& versions, const Deadline& deadline);

  ObjectStore& store_;
  Claim& claim_;
  PartKeys parts_;
  const std::chrono::seconds presign_;
  bool due_ = false;
};

}  // namespace driftless::object_store
