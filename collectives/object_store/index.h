// SPDX-License-Identifier: Apache-2.0
// index.json: what is there, for readers that cannot list. Its publisher writes it anew with every
// version. It may hold presigned links of every object that a reader needs, for those who have no
// credentials either. Links that are there stay until they expire: whoever writes it anew signs
// what is new as well, for the time that is left.
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

  // Nothing if there is no link of the key.
  [[nodiscard]] std::optional<std::string> url(const std::string& key) const;
};

struct Index {
  std::string session;  // of the publisher that wrote it; empty in those of older releases
  std::set<PublicationId> versions;
  std::optional<Links> links;
};
[[nodiscard]] std::string index_text(const Index& index);
// kCorrupt, for `what`.
[[nodiscard]] Result<Index> parse_index(const std::string& text, std::string_view what);

// Which objects the parts of a version are, by its manifest, so that no list can be behind.
// Remembers what it has read. One thread.
class PartKeys {
 public:
  // `store` outlives it.
  PartKeys(ObjectStore& store, ReadParts read) : store_(store), read_(std::move(read)) {}

  // The manifest of a version is this one.
  [[nodiscard]] Status add(const PublicationId& id, const std::string& manifest);
  // Nothing if it is not there any more. Reads the manifest if it is not known.
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> of(const PublicationId& id,
                                                                   const Deadline& deadline);
  // Others than these are not asked for any more.
  void keep(const std::set<PublicationId>& versions);

 private:
  ObjectStore& store_;
  const ReadParts read_;
  std::map<PublicationId, std::vector<std::string>> known_;
};

// The index of one publisher. One thread.
class IndexWriter {
 public:
  // `presign`: how long links hold that are made unasked; 0: none are. The others outlive it.
  IndexWriter(ObjectStore& store, Claim& claim, ReadParts read, std::chrono::seconds presign)
      : store_(store), claim_(claim), parts_(store, std::move(read)), presign_(presign) {}

  // Writes it. A publisher that was overtaken finds its successor's in place of what it read, and
  // is fenced (kWrongRun): an old list never replaces a newer one. On a store without If-Match it
  // looks at publisher.json just before.
  [[nodiscard]] Status write(const std::set<PublicationId>& versions, const Deadline& deadline);
  // A version that was sealed, whose parts need not be looked up.
  void sealed(const PublicationId& id, const std::string& manifest);
  // The last write() failed: what is there is an older one.
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
