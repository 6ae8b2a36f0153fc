// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/signature_v4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>

namespace driftless::object_store {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::size_t kHashBytes = 32;
using Sha256 = std::array<unsigned char, kHashBytes>;

std::string hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

Result<Sha256> sha256(std::string_view bytes) {
  Sha256 hash;
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), hash.data(), &size, EVP_sha256(), nullptr) == 1) {
    return hash;
  }
  return error(StatusCode::kInternal, "OpenSSL: SHA-256 failed");
}

Result<Sha256> hmac(std::span<const unsigned char> key, std::string_view text) {
  Sha256 mac;
  unsigned size = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(text.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, text.size(), mac.data(),
           &size) != nullptr) {
    return mac;
  }
  return error(StatusCode::kInternal, "OpenSSL: HMAC-SHA256 failed");
}

// The signing key for a day, a region and a service.
Result<Sha256> signing_key(std::string_view secret, std::string_view day, std::string_view region,
                           std::string_view service) {
  const std::string first = concat("AWS4", secret);
  const std::span<const unsigned char> start(reinterpret_cast<const unsigned char*>(first.data()),
                                             first.size());
  DRIFTLESS_ASSIGN_OR_RETURN(Sha256 key, hmac(start, day));
  for (const std::string_view each : {region, service, std::string_view("aws4_request")}) {
    DRIFTLESS_ASSIGN_OR_RETURN(key, hmac(key, each));
  }
  return key;
}

std::string scope_of(std::string_view time, std::string_view region, std::string_view service) {
  return concat(time.substr(0, 8), "/", region, "/", service, "/aws4_request");
}

Result<std::string> sign_canonical(std::string_view canonical, const Credentials& credentials,
                                   std::string_view region, std::string_view service,
                                   std::string_view time) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 hashed, sha256(canonical));
  const std::string to_sign =
      concat(kAlgorithm, "\n", time, "\n", scope_of(time, region, service), "\n", hex(hashed));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Sha256 key, signing_key(credentials.secret_key, time.substr(0, 8), region, service));
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 signature, hmac(key, to_sign));
  return hex(signature);
}

}  // namespace

std::string percent_encode(std::string_view text, bool path) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (path && c == '/');
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 15U];
    }
  }
  return out;
}

std::string canonical_query(NameValues query) {
  for (auto& [name, value] : query) {
    name = percent_encode(name, false);
    value = percent_encode(value, false);
  }
  std::ranges::sort(query);
  std::string text;
  for (const auto& [name, value] : query) {
    if (!text.empty()) text += '&';
    text += concat(name, "=", value);
  }
  return text;
}

Result<std::string> sha256_hex(std::span<const std::byte> bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 hash,
                             sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  return hex(hash);
}

std::string time_text(std::time_t time, const char* format) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), format, &parts)};
}

std::string signing_time() { return time_text(std::time(nullptr), "%Y%m%dT%H%M%SZ"); }

Result<NameValues> sign_v4(const RequestToSign& request, const Credentials& credentials,
                           std::string_view region, std::string_view service,
                           std::string_view time) {
  NameValues added{{"x-amz-content-sha256", request.payload_hash},
                   {"x-amz-date", std::string(time)}};
  if (!credentials.session_token.empty()) {
    added.emplace_back("x-amz-security-token", credentials.session_token);
  }
  NameValues headers = request.headers;
  headers.insert(headers.end(), added.begin(), added.end());
  headers.emplace_back("host", request.host);
  std::ranges::sort(headers);
  std::string canonical_headers, names;
  for (const auto& [name, value] : headers) {
    canonical_headers += concat(name, ":", value, "\n");
    names += concat(names.empty() ? "" : ";", name);
  }
  const std::string canonical =
      concat(request.method, "\n", request.path, "\n", canonical_query(request.query), "\n",
             canonical_headers, "\n", names, "\n", request.payload_hash);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string signature,
                             sign_canonical(canonical, credentials, region, service, time));
  added.emplace_back("authorization", concat(kAlgorithm, " Credential=", credentials.access_key,
                                             "/", scope_of(time, region, service),
                                             ",SignedHeaders=", names, ",Signature=", signature));
  return added;
}

NameValues presigned_query(const Credentials& credentials, std::string_view region,
                           std::string_view service, std::string_view time,
                           std::chrono::seconds valid) {
  NameValues query{
      {"X-Amz-Algorithm", std::string(kAlgorithm)},
      {"X-Amz-Credential", concat(credentials.access_key, "/", scope_of(time, region, service))},
      {"X-Amz-Date", std::string(time)},
      {"X-Amz-Expires", std::to_string(valid.count())},
      {"X-Amz-SignedHeaders", "host"}};
  if (!credentials.session_token.empty()) {
    query.emplace_back("X-Amz-Security-Token", credentials.session_token);
  }
  return query;
}

Result<std::string> presign_v4(std::string_view host, std::string_view path,
                               const NameValues& query, const Credentials& credentials,
                               std::string_view region, std::string_view service,
                               std::string_view time) {
  const std::string canonical = concat("GET\n", path, "\n", canonical_query(query), "\nhost:", host,
                                       "\n\nhost\n", kUnsignedPayload);
  return sign_canonical(canonical, credentials, region, service, time);
}

}  // namespace driftless::object_store
