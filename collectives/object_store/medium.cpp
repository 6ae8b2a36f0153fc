// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/medium.h"

#include <charconv>
#include <cstdio>

#include "core/version.h"

namespace driftless::object_store {
namespace {

constexpr std::string_view kVersionSuffix = ".version", kAnchorSuffix = ".anchor",
                           kJsonSuffix = ".json";
constexpr std::size_t kHashDigits = 32, kAttemptDigits = 16;
// Bytes of a version's last line with the line breaks before and after it; a shorter text is not a
// version.
constexpr std::size_t kTail = 1 + kHashDigits + 1 + kAttemptDigits + 1;
constexpr std::string_view kReserved = "reserved ";
constexpr std::size_t kReservation = kReserved.size() + kHashDigits + 1;
static_assert(kReservation < kTail, "a listing distinguishes them by size");

std::string hex16(std::uint64_t number) {
  char text[kAttemptDigits + 1];
  (void)std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::optional<std::uint64_t> parse_number(std::string_view digits, int base) {
  std::uint64_t number = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, code] = std::from_chars(digits.data(), last, number, base);
  if (code != std::errc() || end != last) return std::nullopt;
  return number;
}

// Accepts only the form of hex16(), so that one text stands for one attempt.
std::optional<std::uint64_t> parse_hex16(std::string_view digits) {
  const auto number = parse_number(digits, 16);
  return number && hex16(*number) == digits ? number : std::nullopt;
}

// A version's last line, with the line break before it.
std::string tail_of(std::string_view manifest, std::uint64_t attempt) {
  return concat("\n", to_hex(xxh3_128(manifest)), " ", hex16(attempt), "\n");
}

}  // namespace

std::string publication_name(const PublicationId& id) {
  char digits[24];  // the digits of kMaxVersion, so that names sort like numbers
  (void)std::snprintf(digits, sizeof(digits), "%019llu",
                      static_cast<unsigned long long>(id.version));
  // For one version 'v' sorts after 'a', so a listing is sorted again.
  return concat(digits, is_version(id) ? kVersionSuffix : kAnchorSuffix);
}

std::optional<PublicationId> parse_publication_name(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  PublicationId id;
  if (name.substr(dot) == kAnchorSuffix) id.kind = PublicationKind::kAnchor;
  const auto number = parse_number(name.substr(0, dot), 10);
  id.version = number.value_or(0);
  // Accepts only the canonical form, so that one name stands for one publication.
  if (!number || id.version > kMaxVersion || publication_name(id) != name) return std::nullopt;
  return id;
}

std::string version_key(const PublicationId& id) {
  return concat(kVersionsPrefix, publication_name(id), kJsonSuffix);
}

std::optional<PublicationId> parse_version_key(std::string_view key) {
  if (!key.starts_with(kVersionsPrefix) || !key.ends_with(kJsonSuffix)) return std::nullopt;
  key.remove_prefix(kVersionsPrefix.size());
  key.remove_suffix(kJsonSuffix.size());
  return parse_publication_name(key);
}

std::string parts_prefix(const Attempt& attempt) {
  return concat(kPartsPrefix, publication_name(attempt.id), ".", hex16(attempt.number), "/");
}

std::string part_key(const PublicationId& id, const PartReceipt& part) {
  return concat(parts_prefix({id, part.locator}), part.name);
}

std::string attempt_key(const PublicationId& id, std::string_view session) {
  return concat(kAttemptsPrefix, publication_name(id), ".", session, kJsonSuffix);
}

bool is_attempt_key(std::string_view key) {
  if (key.starts_with(kProbePrefix)) return true;
  if (!key.starts_with(kAttemptsPrefix) || !key.ends_with(kJsonSuffix)) return false;
  key.remove_prefix(kAttemptsPrefix.size());
  key.remove_suffix(kJsonSuffix.size());
  // The session follows the last dot.
  return parse_publication_name(key.substr(0, key.rfind('.'))).has_value();
}

std::optional<Attempt> parse_part_key(std::string_view key) {
  if (!key.starts_with(kPartsPrefix)) return std::nullopt;
  key.remove_prefix(kPartsPrefix.size());
  const auto slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  key = key.substr(0, slash);
  const auto dot = key.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto id = parse_publication_name(key.substr(0, dot));
  const auto number = parse_hex16(key.substr(dot + 1));
  if (!id || !number) return std::nullopt;
  return Attempt{*id, *number};
}

std::string version_text(const VersionObject& version) {
  if (version.removed) return "";
  return concat(version.manifest, tail_of(version.manifest, version.attempt));
}

std::string reservation_text(std::string_view session) { return concat(kReserved, session, "\n"); }

Result<VersionObject> parse_version_text(std::string text, std::string_view what) {
  VersionObject version;
  if (text.size() == kReservation && text.starts_with(kReserved) && text.ends_with('\n')) {
    version.reserved_by = text.substr(kReserved.size(), kHashDigits);
  }
  version.removed = text.empty() || !version.reserved_by.empty();
  if (version.removed) return version;
  if (text.size() >= kTail) {
    const std::string_view all(text);
    const std::string_view manifest = all.substr(0, all.size() - kTail);
    const std::string_view tail = all.substr(manifest.size());
    const auto attempt = parse_hex16(tail.substr(2 + kHashDigits, kAttemptDigits));
    if (attempt && tail == tail_of(manifest, *attempt)) {
      version.attempt = *attempt;
      text.resize(manifest.size());
      version.manifest = std::move(text);
      return version;
    }
  }
  return error(StatusCode::kCorrupt, what, ": ", text.size(),
               " bytes whose last line is not the hash of what is before it");
}

Result<std::optional<VersionObject>> read_version(ObjectStore& store, const PublicationId& id,
                                                  const Deadline& deadline) {
  const std::string key = version_key(id);
  Result<std::string> text = store.get_text(key, kMaxTextBytes, deadline);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<VersionObject>();
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  DRIFTLESS_ASSIGN_OR_RETURN(VersionObject version,
                             parse_version_text(std::move(*text), concat(store.name(), "/", key)));
  return std::optional(std::move(version));
}

VersionList version_list(const std::vector<ObjectInfo>& objects) {
  VersionList list;
  for (const ObjectInfo& object : objects) {
    const auto id = parse_version_key(object.key);
    if (!id || object.size_bytes == kReservation) continue;
    (object.size_bytes > 0 ? list.there : list.removed).push_back(*id);
  }
  std::ranges::sort(list.there);
  std::ranges::sort(list.removed);
  return list;
}

}  // namespace driftless::object_store
