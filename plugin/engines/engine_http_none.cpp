// SPDX-License-Identifier: Apache-2.0
// Built in place of engine_http_curl.cpp if libcurl was not found.
#include "plugin/engines/engine_http.h"

namespace driftless {

Status check_http() {
  return error(StatusCode::kUnsupported, "engines cannot be called: built without libcurl, ",
               "install it (Debian: libcurl4-openssl-dev) and build again");
}

HttpAnswer http_call(const HttpCall&, std::chrono::milliseconds, const std::atomic<bool>*) {
  HttpAnswer answer;
  answer.status = check_http();
  return answer;
}

HttpFunction http_session() { return http_call; }

}  // namespace driftless
