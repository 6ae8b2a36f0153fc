// SPDX-License-Identifier: Apache-2.0
// EngineLink: JSON over HTTP with one engine (engine_http.h). An answer is strict JSON, or a
// failure that names the call, the HTTP status and the engine's message. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

#include "core/status.h"
#include "formats/strict_json.h"
#include "plugin/engines/engine_endpoint.h"
#include "plugin/engines/engine_http.h"

namespace driftless {

// The answer to one call.
struct EngineReply {
  // kIo: the engine could not be reached, or answered 5xx. kInvalidArgument: 3xx or 4xx.
  // kDeadlineExceeded: too late. kCorrupt: not a JSON object. An empty body counts as an empty
  // object.
  Status status;
  long http_status = 0;  // 0: no answer
  bool again = false;    // a retry may succeed
  bool kept = false;     // the next call can reach the same server process
  std::string words;     // the engine's message, on one line
  std::string body;
};

class EngineLink {
 public:
  // Pass `engine` through prepare_endpoint first. `stop` cuts short the calls that allow it; null:
  // none. It outlives the link.
  EngineLink(const EngineEndpoint& engine, std::chrono::milliseconds timeout,
             const std::atomic<bool>* stop, HttpFunction http = http_call);

  // `must`: `stop` does not cut this call short.
  [[nodiscard]] Result<Json> post(std::string_view path, const Json& body, bool must) const;
  [[nodiscard]] Result<Json> get(std::string_view path, bool must) const;
  // With its own timeout; returns all that is known of the answer.
  [[nodiscard]] EngineReply call(std::string_view path, const Json* body,
                                 std::chrono::milliseconds timeout, bool must,
                                 bool same_server = false) const;

  // The engine's address for messages, without user and password.
  [[nodiscard]] const std::string& url() const { return name_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  [[nodiscard]] bool stopping() const { return stop_ != nullptr && *stop_; }

 private:
  std::string url_, name_, token_;
  std::chrono::milliseconds timeout_;
  const std::atomic<bool>* stop_;
  HttpFunction http_;
};

// Turns a refusal with 404 or 405 into kUnsupported: this engine does not have the path.
[[nodiscard]] Status known_call(const Status& status);
// The text under a key; empty if there is none.
[[nodiscard]] std::string json_text(const Json& json, const char* key);

}  // namespace driftless
