// SPDX-License-Identifier: Apache-2.0
// Reading a secret (a token, a password) from a file that nobody else can read or change.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The content of `path` without the white space at its end. kInvalidArgument, with a message of one
// line that says what to do, if the file is not a regular file, is not owned by the user who runs
// this process, can be read, written or executed by its group or by others (mode & 077), or holds
// no secret or more than `max_bytes`. kNotFound if it is not there. A symbolic link is followed:
// what it leads to is checked.
[[nodiscard]] Result<std::string> read_secret_file(const std::string& path,
                                                   std::size_t max_bytes = 4096);

// The same of a token that an HTTP header carries: kInvalidArgument unless it is plain text.
[[nodiscard]] Result<std::string> read_token_file(const std::string& path);
// Printable ASCII characters alone, and no spaces.
[[nodiscard]] bool is_plain_text(std::string_view text);

}  // namespace driftless
