// SPDX-License-Identifier: Apache-2.0
// Signing requests to S3-compatible stores: AWS Signature Version 4, in the Authorization header,
// or in the query. Pure: what is signed, with which key, at which time is the caller's.
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

// Secrets. Nothing prints them.
struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // may be empty

  friend bool operator==(const Credentials&, const Credentials&) = default;
};

using NameValues = std::vector<std::pair<std::string, std::string>>;

// What is signed. Names and values of the query are plain; `path` is percent-encoded already.
struct RequestToSign {
  std::string_view method;
  std::string_view host;  // with its port, if that is not the scheme's
  std::string_view path;  // begins with '/'
  NameValues query;
  NameValues headers;        // to be signed beside `host`: lower-case names
  std::string payload_hash;  // hexadecimal SHA-256, or kUnsignedPayload
};
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// The headers that the request needs beside its own: authorization, x-amz-date,
// x-amz-content-sha256, x-amz-security-token. `time`: UTC as 20130524T000000Z.
[[nodiscard]] Result<NameValues> sign_v4(const RequestToSign& request,
                                         const Credentials& credentials, std::string_view region,
                                         std::string_view service, std::string_view time);

// The query of GETs that bear their signatures themselves ("presigned"), for readers without
// credentials, without that signature: all that are signed at one time share it.
[[nodiscard]] NameValues presigned_query(const Credentials& credentials, std::string_view region,
                                         std::string_view service, std::string_view time,
                                         std::chrono::seconds valid);
// The signature (X-Amz-Signature) of such a GET. `query`: of presigned_query(), at `time`.
[[nodiscard]] Result<std::string> presign_v4(std::string_view host, std::string_view path,
                                             const NameValues& query,
                                             const Credentials& credentials,
                                             std::string_view region, std::string_view service,
                                             std::string_view time);

// The query as it is signed and sent: sorted, percent-encoded, joined by '&'.
[[nodiscard]] std::string canonical_query(NameValues query);
// Everything but letters, digits and "-._~" becomes %XX; '/' stays if it is part of a path.
[[nodiscard]] std::string percent_encode(std::string_view text, bool path);
[[nodiscard]] Result<std::string> sha256_hex(std::span<const std::byte> bytes);
// Now, as sign_v4() wants it; and any time, UTC, as strftime() has it.
[[nodiscard]] std::string signing_time();
[[nodiscard]] std::string time_text(std::time_t time, const char* format);

}  // namespace driftless::object_store
