// SPDX-License-Identifier: Apache-2.0
// Reading a secret (a token, a password) from a file that nobody else can read or change.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The content of `path` without trailing white space. kInvalidArgument, with a message of one line
// that names the remedy, if the file is not a regular file, is not owned by the user who runs this
// process, can be read, written or executed by its group or by others (mode & 077), is empty, or is
// longer than `max_bytes`. kNotFound if it does not exist. A symbolic link is followed, and its
// target is checked.
[[nodiscard]] Result<std::string> read_secret_file(const std::string& path,
                                                   std::size_t max_bytes = 4096);

// The same for a token that an HTTP header carries: kInvalidArgument unless it is plain text.
[[nodiscard]] Result<std::string> read_token_file(const std::string& path);
// Whether `text` consists of printable ASCII characters without spaces.
[[nodiscard]] bool is_plain_text(std::string_view text);

}  // namespace driftless
