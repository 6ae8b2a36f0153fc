// SPDX-License-Identifier: Apache-2.0
// URLs in messages: a user, a password or a signature in one is a secret.
#pragma once

#include <string>
#include <string_view>

namespace driftless {

// Whether it names a user, and with it perhaps a password: "http://user:password@host".
[[nodiscard]] bool has_user(std::string_view url);
// The URL without user, password, query and fragment.
[[nodiscard]] std::string public_url(std::string_view url);

}  // namespace driftless
