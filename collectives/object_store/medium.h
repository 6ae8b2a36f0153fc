// SPDX-License-Identifier: Apache-2.0
// Shared by both sides of the object_store road: the names of its objects, and the text of those
// that it writes itself.
#pragma once

#include "collectives/object_store/object_store_road.h"

namespace driftless::object_store {

// Implements RoadOpener::examine.
[[nodiscard]] std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                                           const Deadline& deadline);

inline constexpr std::string_view kRunKey = "run.json";
inline constexpr std::string_view kPublisherKey = "publisher.json";
inline constexpr std::string_view kIndexKey = "index.json";
inline constexpr std::string_view kVersionsPrefix = "versions/";
inline constexpr std::string_view kAttemptsPrefix = "attempts/";
inline constexpr std::string_view kPartsPrefix = "parts/";
inline constexpr std::string_view kReceiversPrefix = "receivers/";
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxSmallBytes = std::size_t{64} << 10;

// "0000000000000000007.version", "0000000000000000007.anchor", and back. The texts sort by
// version; for one version, the anchor comes first.
[[nodiscard]] std::string publication_name(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_publication_name(std::string_view name);

// "versions/0000000000000000007.version.json", and back.
[[nodiscard]] std::string version_key(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_version_key(std::string_view key);

// One attempt to publish; its number keeps its parts apart from those of other attempts.
struct Attempt {
  PublicationId id;
  std::uint64_t number = 0;

  friend auto operator<=>(const Attempt&, const Attempt&) = default;
};
// "parts/0000000000000000007.version.0123456789abcdef/", and back, from a key below it.
[[nodiscard]] std::string parts_prefix(const Attempt& attempt);
// The key of a part of a publication, from its receipt.
[[nodiscard]] std::string part_key(const PublicationId& id, const PartReceipt& part);
// The key at which the leader of a session stores the number of an attempt for the other ranks.
[[nodiscard]] std::string attempt_key(const PublicationId& id, std::string_view session);
// Whether the road wrote an object below kAttemptsPrefix; other objects may be there.
[[nodiscard]] bool is_attempt_key(std::string_view key);
inline constexpr std::string_view kProbePrefix = "attempts/probe-";
[[nodiscard]] std::optional<Attempt> parse_part_key(std::string_view key);

// A version's object: the manifest, a line break, and a line with its hash and the number of the
// attempt that wrote its parts. An empty object marks a publication that was removed or must not
// appear any more: its name stays taken. A reservation keeps a name for one session; only that
// session can put a version in its place.
struct VersionObject {
  std::string manifest;
  std::uint64_t attempt = 0;
  bool removed = false;          // nothing to read: removed, or only reserved
  std::string reserved_by = {};  // the session that reserved it
};
[[nodiscard]] std::string version_text(const VersionObject& version);
[[nodiscard]] std::string reservation_text(std::string_view session);
// kCorrupt, naming `what`, if the text is not such an object.
[[nodiscard]] Result<VersionObject> parse_version_text(std::string text, std::string_view what);
// Empty if there is no such object. Reads it by its name, because a listing may be out of date.
[[nodiscard]] Result<std::optional<VersionObject>> read_version(ObjectStore& store,
                                                                const PublicationId& id,
                                                                const Deadline& deadline);

// The content of a listing of kVersionsPrefix, ascending.
struct VersionList {
  std::vector<PublicationId> there;
  std::vector<PublicationId> removed;  // without names that are only reserved
};
[[nodiscard]] VersionList version_list(const std::vector<ObjectInfo>& objects);

}  // namespace driftless::object_store
