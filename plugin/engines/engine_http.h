// SPDX-License-Identifier: Apache-2.0
// One HTTP call to an engine: JSON in, a body out. Needs libcurl (engine_http_curl.cpp); without it
// every call returns kUnsupported.
//
// Replies are untrusted: at most kMaxEngineReplyBytes are read. Redirects are not followed, and
// proxies of the environment are not used. Any thread.
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
  std::string body;   // JSON, for a POST
  std::string token;  // sent as a bearer token unless empty
  bool get = false;   // a GET, without a body
  // Use only the connection of the session's last call, so that the same server process takes this
  // one. If that connection is gone, nothing is sent and the answer is kIncomplete.
  bool same_server = false;
};

struct HttpAnswer {
  Status status;    // ok: the server answered, with any HTTP status
  long number = 0;  // HTTP status; 0: no answer
  std::string body;
  bool again = false;  // a retry may succeed
  bool kept = false;   // the session's connection can carry the next call
};

// kUnsupported without libcurl.
[[nodiscard]] Status check_http();
// The call fails early once `*stop` is true; null: never.
[[nodiscard]] HttpAnswer http_call(const HttpCall& call, std::chrono::milliseconds timeout,
                                   const std::atomic<bool>* stop = nullptr);
// http_call, a session, or a test's function.
using HttpFunction = std::function<HttpAnswer(const HttpCall& call, std::chrono::milliseconds,
                                              const std::atomic<bool>* stop)>;
// As http_call, over a connection that stays open as long as the server keeps it. One thread at a
// time.
[[nodiscard]] HttpFunction http_session();

}  // namespace driftless
