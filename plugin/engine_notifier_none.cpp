// In place of engine_notifier_curl.cpp where libcurl was not found.
#include "plugin/engine_notifier.h"

namespace driftless {

Result<std::unique_ptr<EngineNotifier>> EngineNotifier::create(NotifyOptions) {
  return error(StatusCode::kUnsupported, "engines cannot be notified: built without libcurl, ",
               "install it (Debian: libcurl4-openssl-dev) and build again");
}

}  // namespace driftless
