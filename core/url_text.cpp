// SPDX-License-Identifier: Apache-2.0
#include "core/url_text.h"

namespace driftless {
namespace {

struct UrlParts {
  std::string_view scheme, user, rest;  // "http://", "user:password@", "host/path"
};

// In an http URL the user part reaches to the last '@' before the query: a password may hold a '/'.
// In a bucket's URL it ends before the first '/', because a key may hold an '@'.
UrlParts parts_of(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  const std::size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return {{}, {}, url};
  const std::string_view after = url.substr(scheme + 3);
  const std::string_view place = url.starts_with("http") ? after : after.substr(0, after.find('/'));
  const std::size_t at = place.rfind('@');
  const std::size_t user = at == std::string_view::npos ? 0 : at + 1;
  return {url.substr(0, scheme + 3), after.substr(0, user), after.substr(user)};
}

}  // namespace

bool has_user(std::string_view url) { return !parts_of(url).user.empty(); }

std::string public_url(std::string_view url) {
  const UrlParts parts = parts_of(url);
  return std::string(parts.scheme).append(parts.rest);
}

}  // namespace driftless
