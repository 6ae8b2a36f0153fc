// SPDX-License-Identifier: Apache-2.0
// index.json: what is there, for readers that cannot list. Its publisher writes it anew with every
// version. It may hold presigned links of every object that a reader needs, for those who have no
// credentials either:
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

// Links of all objects that a reader of these versions needs. One list.
[[nodiscard]] Result<Links> make_links(ObjectStore& store, const std::set<PublicationId>& versions,
                                       std::chrono::seconds valid, const Deadline& deadline);

// Writes the publisher's index; `presign` of 0: without links. A publisher that was overtaken finds
// its successor's in place of what it read, and is fenced (kWrongRun): an old list never replaces a
// newer one. On a store without If-Match it looks at publisher.json just before.
[[nodiscard]] Status write_index(ObjectStore& store, Claim& claim,
                                 const std::set<PublicationId>& versions,
                                 std::chrono::seconds presign, const Deadline& deadline);

}  // namespace driftless::object_store
