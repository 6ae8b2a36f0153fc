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

inline constexpr std::size_t kMaxEngineReplyBytes = std::size_t{1} << 20;

struct HttpCall {
  std::string url;
  std::string body;   // JSON; of a POST
  std::string token;  // empty, or sent as a bearer token
  bool get = false;   // a GET, without a body
};

struct HttpAnswer {
  Status status;    // ok: something was answered, whatever it says
  long number = 0;  // the HTTP status; 0: none
  std::string body;
  bool again = false;  // it may go well another time
};

// kUnsupported without libcurl.
[[nodiscard]] Status check_http();
// Ends early, as a failure, once `*stop` is true; null: never.
[[nodiscard]] HttpAnswer http_call(const HttpCall& call, std::chrono::milliseconds timeout,
                                   const std::atomic<bool>* stop = nullptr);
// http_call, or a test's.
using HttpFunction = std::function<HttpAnswer(const HttpCall& call, std::chrono::milliseconds,
                                              const std::atomic<bool>* stop)>;

}  // namespace driftless
