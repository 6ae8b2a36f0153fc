// EngineLink: JSON over HTTP with one engine. What it answers is strict JSON, or a failure that
// names the call, the HTTP status and the engine's words. Internal to agent/.
#pragma once

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/status.h"
#include "formats/strict_json.h"

namespace driftless {

class EngineLink {
 public:
  // `stop` ends the calls that may be ended; it outlives the link.
  EngineLink(std::string url, std::string token, std::chrono::milliseconds timeout,
             const std::atomic<bool>& stop);

  // kIo where the engine could not be reached or says 5xx, kInvalidArgument for 4xx,
  // kDeadlineExceeded, kCorrupt for what is not a JSON object. An empty answer is an empty object.
  [[nodiscard]] Result<Json> post(std::string_view path, const Json& body = Json::object()) const;
  [[nodiscard]] Result<Json> get(std::string_view path) const;
  // The same for calls that must be made, also while everything ends: what was paused is resumed.
  [[nodiscard]] Result<Json> must_post(std::string_view path,
                                       const Json& body = Json::object()) const;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] bool stopping() const { return *stop_; }

 private:
  [[nodiscard]] Result<Json> call(std::string_view path, const Json* body, bool may_stop) const;

  std::string url_, token_;
  std::chrono::milliseconds timeout_;
  const std::atomic<bool>* stop_;
};

// A call's path that this engine does not know: 404 or 405.
[[nodiscard]] bool is_unknown_call(const Status& status);

}  // namespace driftless
