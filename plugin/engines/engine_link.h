// SPDX-License-Identifier: Apache-2.0
// EngineLink: JSON over HTTP with one engine (engine_http.h). What it answers is strict JSON, or a
// failure that names the call, the HTTP status and the engine's words. Any thread.
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

// One call, as it was answered.
struct EngineReply {
  // kIo: the engine could not be reached, or says 5xx; kInvalidArgument: 3xx or 4xx;
  // kDeadlineExceeded; kCorrupt: no JSON object. An empty answer is an empty object.
  Status status;
  long http_status = 0;  // 0: nothing was answered
  bool again = false;    // it may go well another time
  bool kept = false;     // the next call can go to the same server process
  std::string words;     // the engine's own, on one line
  std::string body;
};

class EngineLink {
 public:
  // `engine` is prepared (prepare_endpoint). `stop` ends the calls that may be ended; null: none.
  // It outlives the link.
  EngineLink(const EngineEndpoint& engine, std::chrono::milliseconds timeout,
             const std::atomic<bool>* stop, HttpFunction http = http_call);

  // `must`: also while everything ends.
  [[nodiscard]] Result<Json> post(std::string_view path, const Json& body, bool must) const;
  [[nodiscard]] Result<Json> get(std::string_view path, bool must) const;
  // With a timeout of its own, and all that is known of the answer.
  [[nodiscard]] EngineReply call(std::string_view path, const Json* body,
                                 std::chrono::milliseconds timeout, bool must,
                                 bool same_server = false) const;

  // The engine's address, without a user and a password: for messages.
  [[nodiscard]] const std::string& url() const { return name_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  [[nodiscard]] bool stopping() const { return stop_ != nullptr && *stop_; }

 private:
  std::string url_, name_, token_;
  std::chrono::milliseconds timeout_;
  const std::atomic<bool>* stop_;
  HttpFunction http_;
};

// kUnsupported in place of a refusal with 404 or 405: this engine does not know the path.
[[nodiscard]] Status known_call(const Status& status);
// Text under a key, or nothing.
[[nodiscard]] std::string json_text(const Json& json, const char* key);

}  // namespace driftless
