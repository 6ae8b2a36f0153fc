// SPDX-License-Identifier: Apache-2.0
// What both sides of the object_store road share: the names of its objects, and the text of those
// that it writes itself.
#pragma once

#include "collectives/object_store/object_store_road.h"

namespace driftless::object_store {

// RoadOpener::examine.
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

// "0000000000000000007.version", "0000000000000000007.anchor": in the order of versions, the
// version before the anchor; and back.
[[nodiscard]] std::string publication_name(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_publication_name(std::string_view name);

// "versions/0000000000000000007.version.json", and back.
[[nodiscard]] std::string version_key(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_version_key(std::string_view key);

// One try to publish something: its parts lie under a number that no other try has.
struct Attempt {
  PublicationId id;
  std::uint64_t number = 0;

  friend auto operator<=>(const Attempt&, const Attempt&) = default;
};
// "parts/0000000000000000007.version.0123456789abcdef/", and back, from a key below it.
[[nodiscard]] std::string parts_prefix(const Attempt& attempt);
// Where a part of a publication lies, by its receipt.
[[nodiscard]] std::string part_key(const PublicationId& id, const PartReceipt& part);
// Where the leader of a session tells the other ranks the number of an attempt.
[[nodiscard]] std::string attempt_key(const PublicationId& id, std::string_view session);
// Whether the road wrote an object below kAttemptsPrefix: others may lie there.
[[nodiscard]] bool is_attempt_key(std::string_view key);
inline constexpr std::string_view kProbePrefix = "attempts/probe-";
[[nodiscard]] std::optional<Attempt> parse_part_key(std::string_view key);

// A version's object: the manifest, a line break, and a line with its hash and the number of the
// attempt that its parts belong to. An empty object stands for a publication that was removed, or
// must not appear any more: its name is taken for good. A reservation keeps a name for one session,
// which alone can put a version in its place.
struct VersionObject {
  std::string manifest;
  std::uint64_t attempt = 0;
  bool removed = false;          // there is nothing to read: removed, or only reserved
  std::string reserved_by = {};  // the session
};
[[nodiscard]] std::string version_text(const VersionObject& version);
[[nodiscard]] std::string reservation_text(std::string_view session);
// kCorrupt, for `what`.
[[nodiscard]] Result<VersionObject> parse_version_text(std::string text, std::string_view what);
// Nothing if there is no such object. By its name, so that no list can be behind.
[[nodiscard]] Result<std::optional<VersionObject>> read_version(ObjectStore& store,
                                                                const PublicationId& id,
                                                                const Deadline& deadline);

// What a list of kVersionsPrefix says, ascending.
struct VersionList {
  std::vector<PublicationId> there;
  std::vector<PublicationId> removed;  // without names that are only reserved
};
[[nodiscard]] VersionList version_list(const std::vector<ObjectInfo>& objects);

}  // namespace driftless::object_store
