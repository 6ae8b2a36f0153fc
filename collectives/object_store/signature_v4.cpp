// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/signature_v4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <ctime>

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

// The key of a day, a region and a service.
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

std::string signing_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &parts)};
}

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
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 hashed, sha256(canonical));
  const std::string_view day = time.substr(0, 8);
  const std::string scope = concat(day, "/", region, "/", service, "/aws4_request");
  const std::string to_sign = concat(kAlgorithm, "\n", time, "\n", scope, "\n", hex(hashed));
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 key,
                             signing_key(credentials.secret_key, day, region, service));
  DRIFTLESS_ASSIGN_OR_RETURN(const Sha256 signature, hmac(key, to_sign));
  added.emplace_back("authorization",
                     concat(kAlgorithm, " Credential=", credentials.access_key, "/", scope,
                            ",SignedHeaders=", names, ",Signature=", hex(signature)));
  return added;
}

}  // namespace driftless::object_store
