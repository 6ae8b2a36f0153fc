// SPDX-License-Identifier: Apache-2.0
// What both sides of the object_store road share: the names of its objects, and the text of those
// that it writes itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/object_store/object_store_road.h"
#include "collectives/road.h"
#include "core/hash128.h"

namespace driftless::object_store {

inline constexpr std::string_view kRunKey = "run.json";
inline constexpr std::string_view kPublisherKey = "publisher.json";
inline constexpr std::string_view kIndexKey = "index.json";
inline constexpr std::string_view kVersionsPrefix = "versions/";
inline constexpr std::string_view kAttemptsPrefix = "attempts/";
inline constexpr std::string_view kPartsPrefix = "parts/";
inline constexpr std::string_view kReceiversPrefix = "receivers/";
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxSmallBytes = std::size_t{64} << 10;

// "weight_v000007", "anchor_v000007", and back.
[[nodiscard]] std::string publication_name(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_publication_name(std::string_view name);

// "versions/weight_v000007.json", and back.
[[nodiscard]] std::string version_key(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_version_key(std::string_view key);
// "parts/weight_v000007.0123456789abcdef/": of one attempt to publish it.
[[nodiscard]] std::string parts_prefix(const PublicationId& id, std::uint64_t attempt);

// A version's object: the manifest, a line break, and a line with its hash and the attempt that its
// parts belong to. An empty object stands for a version that was removed: its name is not free.
struct VersionObject {
  std::string manifest;
  std::uint64_t attempt = 0;
};
[[nodiscard]] std::string version_text(const VersionObject& version);
// kNotFound of an empty text, kCorrupt.
[[nodiscard]] Result<VersionObject> parse_version_text(std::string text, std::string_view what);

// The publications among objects below kVersionsPrefix, ascending; those that were removed are not.
[[nodiscard]] std::vector<PublicationId> publications(const std::vector<ObjectInfo>& objects);

}  // namespace driftless::object_store
