// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/medium.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "core/version.h"

namespace driftless::object_store {
namespace {

constexpr std::string_view kStepFront = "weight_v", kAnchorFront = "anchor_v", kSuffix = ".json";
constexpr std::size_t kHashDigits = 32, kAttemptDigits = 16;

std::string hex16(std::uint64_t number) {
  char text[kAttemptDigits + 1];
  (void)std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::string publication_name(const PublicationId& id) {
  char digits[24];
  (void)std::snprintf(digits, sizeof(digits), "%06llu",
                      static_cast<unsigned long long>(id.version));
  return concat(id.kind == PublicationKind::kVersion ? kStepFront : kAnchorFront, digits);
}

std::optional<PublicationId> parse_publication_name(std::string_view name) {
  PublicationId id;
  if (name.starts_with(kAnchorFront)) {
    id.kind = PublicationKind::kAnchor;
  } else if (!name.starts_with(kStepFront)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStepFront.size());
  const auto [end, code] =
      std::from_chars(digits.data(), digits.data() + digits.size(), id.version);
  const bool whole = code == std::errc() && end == digits.data() + digits.size();
  // Only as it is written, so that a name stands for one version.
  if (!whole || id.version > kMaxVersion || publication_name(id) != name) return std::nullopt;
  return id;
}

std::string version_key(const PublicationId& id) {
  return concat(kVersionsPrefix, publication_name(id), kSuffix);
}

std::optional<PublicationId> parse_version_key(std::string_view key) {
  if (!key.starts_with(kVersionsPrefix) || !key.ends_with(kSuffix)) return std::nullopt;
  key.remove_prefix(kVersionsPrefix.size());
  key.remove_suffix(kSuffix.size());
  return parse_publication_name(key);
}

std::string parts_prefix(const PublicationId& id, std::uint64_t attempt) {
  return concat(kPartsPrefix, publication_name(id), ".", hex16(attempt), "/");
}

std::string version_text(const VersionObject& version) {
  return concat(version.manifest, "\n", to_hex(xxh3_128(version.manifest)), " ",
                hex16(version.attempt), "\n");
}

Result<VersionObject> parse_version_text(std::string text, std::string_view what) {
  if (text.empty()) {
    return error(StatusCode::kNotFound, what, ": it was removed; take the newest anchor");
  }
  constexpr std::size_t kTail = 1 + kHashDigits + 1 + kAttemptDigits + 1;
  VersionObject version;
  if (text.size() >= kTail) {
    const std::string_view tail = std::string_view(text).substr(text.size() - kTail);
    const std::string_view digits = tail.substr(2 + kHashDigits, kAttemptDigits);
    const auto [end, code] =
        std::from_chars(digits.data(), digits.data() + digits.size(), version.attempt, 16);
    const std::string_view manifest = std::string_view(text).substr(0, text.size() - kTail);
    const bool whole = tail.front() == '\n' && tail.back() == '\n' && code == std::errc() &&
                       end == digits.data() + digits.size() &&
                       tail.substr(1, kHashDigits) == to_hex(xxh3_128(manifest));
    if (whole) {
      text.resize(manifest.size());
      version.manifest = std::move(text);
      return version;
    }
  }
  return error(StatusCode::kCorrupt, what, ": its last line is not the hash of what is before it");
}

std::vector<PublicationId> publications(const std::vector<ObjectInfo>& objects) {
  std::vector<PublicationId> ids;
  for (const ObjectInfo& object : objects) {
    const auto id = parse_version_key(object.key);
    if (id && object.size_bytes > 0) ids.push_back(*id);
  }
  std::ranges::sort(ids);
  return ids;
}

}  // namespace driftless::object_store
