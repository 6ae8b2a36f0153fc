// SPDX-License-Identifier: Apache-2.0
// One HTTP call to an engine: JSON in, a body out. Needs libcurl (engine_http_curl.cpp); without it
// every call says so.
//
// What comes back is data from outside: at most kMaxEngineReplyBytes. Redirects are not followed,
// and proxies of the environment are not used. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "core/status.h"

namespace driftless {

inline constexpr std::size_t kMaxEngineReplyBytes = std::size_t{64} << 20;

struct HttpCall {
  std::string url;
  std::string body;   // JSON; of a POST
  std::string token;  // empty, or sent as a bearer token
  bool get = false;   // a GET, without a body
  // Only over the connection of the session's last call, so that the same server process takes it;
  // kIncomplete, and nothing was said, if that is gone.
  bool same_server = false;
};

struct HttpAnswer {
  Status status;    // ok: something was answered, whatever it says
  long number = 0;  // the HTTP status; 0: none
  std::string body;
  bool again = false;  // it may go well another time
  bool kept = false;   // the session's connection can carry the next call
};

// kUnsupported without libcurl.
[[nodiscard]] Status check_http();
// Ends early, as a failure, once `*stop` is true; null: never.
[[nodiscard]] HttpAnswer http_call(const HttpCall& call, std::chrono::milliseconds timeout,
                                   const std::atomic<bool>* stop = nullptr);
// http_call, a session, or a test's.
using HttpFunction = std::function<HttpAnswer(const HttpCall& call, std::chrono::milliseconds,
                                              const std::atomic<bool>* stop)>;
// http_call over a connection that is kept as long as the server keeps it. One thread at a time.
[[nodiscard]] HttpFunction http_session();

}  // namespace driftless
