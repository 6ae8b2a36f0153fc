// What is said to an engine and what its replies mean, whatever carries them. Internal to
// engine_*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "plugin/engines/engine_notifier.h"

namespace driftless {

struct EngineCall {
  std::string url;
  std::string body;  // JSON
};

// kInvalidArgument, naming the url, where it cannot be called.
[[nodiscard]] Status check_endpoint(const EngineEndpoint& engine);
// In the order in which they are made; the next only if the one before went well.
[[nodiscard]] Result<std::vector<EngineCall>> engine_calls(const EngineEndpoint& engine,
                                                           const PublishedVersion& version);

struct EngineReply {
  Status status;
  std::string message;
  bool again = false;  // it may go well another time
};
// Of an answered call.
[[nodiscard]] EngineReply judge_reply(const std::string& url, long http_status,
                                      std::string_view body);

}  // namespace driftless
