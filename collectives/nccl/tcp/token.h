// SPDX-License-Identifier: Apache-2.0
// The secret of a run, and what is proved with it.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless::nccl {

inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kNonceBytes = 32;

// The secret in a token file (core/secret_file.h). kInvalidArgument if others could get at the
// file, or the secret is shorter than 16 bytes.
[[nodiscard]] Result<std::string> read_token(const std::string& path);

// HMAC-SHA256. kInternal where the library refuses.
[[nodiscard]] Result<std::string> prove(std::string_view key, std::string_view text);
// In a time that does not depend on where they differ.
[[nodiscard]] bool same_proof(std::string_view one, std::string_view other);
[[nodiscard]] Result<std::string> new_nonce();

// What the two sides of a new connection say, from their nonces.
[[nodiscard]] Result<std::string> client_proof(std::string_view token, std::string_view server,
                                               std::string_view client);
[[nodiscard]] Result<std::string> server_proof(std::string_view token, std::string_view server,
                                               std::string_view client);
// The key of the connection's messages.
[[nodiscard]] Result<std::string> session_key(std::string_view token, std::string_view server,
                                              std::string_view client);

}  // namespace driftless::nccl
