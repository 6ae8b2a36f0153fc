// SGLang's own calls around an update, and what they leave to be done. Internal to agent/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

class SglangCalls {
 public:
  explicit SglangCalls(const EngineLink& link) : link_(&link) {}

  // Ok where it was answered with 2xx and does not say "success": false.
  [[nodiscard]] Status post(std::string_view path, const Json& body = Json::object()) const;
  // Requests in flight are taken back, and computed anew with the new weights. After a failure the
  // engine is resumed.
  [[nodiscard]] Status pause();
  void dirty() { dirty_ = true; }
  // Clears the cache and resumes, as far as there is need. Tried several times.
  [[nodiscard]] Status settle();
  [[nodiscard]] Result<std::string> weight_version() const;
  // The server says that it serves this version; it is told where it says another.
  [[nodiscard]] Status confirm(std::uint64_t version) const;
  // By us.
  [[nodiscard]] bool paused() const { return paused_ && !first_; }

 private:
  const EngineLink* link_;
  // Before the first call nobody knows: an agent that was killed may have left it paused.
  bool paused_ = true, first_ = true;
  bool dirty_ = false;
};

// Text under a key, or nothing.
[[nodiscard]] std::string json_text(const Json& json, const char* key);

}  // namespace driftless
