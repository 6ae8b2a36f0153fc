// SPDX-License-Identifier: Apache-2.0
// Signs requests to S3-compatible stores: AWS Signature Version 4, in the Authorization header or
// in the query. Pure functions: the caller provides request, key and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace driftless::object_store {

// Secrets. No code prints them.
struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // may be empty

  friend bool operator==(const Credentials&, const Credentials&) = default;
};

using NameValues = std::vector<std::pair<std::string, std::string>>;

// The signed parts of a request. Names and values of the query are plain; `path` is already
// percent-encoded.
struct RequestToSign {
  std::string_view method;
  std::string_view host;  // with its port, unless it is the scheme's default
  std::string_view path;  // begins with '/'
  NameValues query;
  NameValues headers;        // to be signed in addition to `host`: lower-case names
  std::string payload_hash;  // hexadecimal SHA-256, or kUnsignedPayload
};
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// The headers to add to the request: authorization, x-amz-date, x-amz-content-sha256,
// x-amz-security-token. `time`: UTC, as 20130524T000000Z.
[[nodiscard]] Result<NameValues> sign_v4(const RequestToSign& request,
                                         const Credentials& credentials, std::string_view region,
                                         std::string_view service, std::string_view time);

// The query, except the signature, of presigned GETs, for readers without credentials. All GETs
// signed at one time share it.
[[nodiscard]] NameValues presigned_query(const Credentials& credentials, std::string_view region,
                                         std::string_view service, std::string_view time,
                                         std::chrono::seconds valid);
// The signature (X-Amz-Signature) of such a GET. `query`: from presigned_query() with the same
// `time`.
[[nodiscard]] Result<std::string> presign_v4(std::string_view host, std::string_view path,
                                             const NameValues& query,
                                             const Credentials& credentials,
                                             std::string_view region, std::string_view service,
                                             std::string_view time);

// The query as signed and sent: sorted, percent-encoded, joined by '&'.
[[nodiscard]] std::string canonical_query(NameValues query);
// Encodes everything except letters, digits and "-._~" as %XX; keeps '/' if the text is a path.
[[nodiscard]] std::string percent_encode(std::string_view text, bool path);
[[nodiscard]] Result<std::string> sha256_hex(std::span<const std::byte> bytes);
// The current time in the form of sign_v4(); and any UTC time in a format of strftime().
[[nodiscard]] std::string signing_time();
[[nodiscard]] std::string time_text(std::time_t time, const char* format);

}  // namespace driftless::object_store
