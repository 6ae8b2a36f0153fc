// SPDX-License-Identifier: Apache-2.0
// The calls of a server that do not depend on who writes its weights: pause, cache, resume, label.
// Internal to engines/ and to the Python module.
#pragma once

#include "plugin/engines/engine_driver.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

[[nodiscard]] EngineAnswer vllm_server_call(const EngineLink& link, const EngineCall& call);
[[nodiscard]] EngineAnswer sglang_server_call(const EngineLink& link, const EngineCall& call);

// SGLang's: ok if it was answered with 2xx and does not say "success": false.
[[nodiscard]] Status sglang_post(const EngineLink& link, std::string_view path, const Json& body,
                                 bool must);
// Returns once every tensor-parallel rank has ended what it was told before. Ok of a server that
// does not know the calls: nothing tells there.
[[nodiscard]] Status sglang_meet(const EngineLink& link);
// Its /update_weights_from_disk, until every tensor-parallel rank has ended it. SGLang answers when
// the first rank has: another one may still read the files, and does not say if it finds them gone.
[[nodiscard]] Status sglang_load(const EngineLink& link, const Json& body);
// What /server_info tells of the process; empty: nothing that another process would not tell, too.
[[nodiscard]] std::string sglang_process(const Json& server_info);

// What a begin came to: with 4xx the engine says that it did not.
[[nodiscard]] inline EngineAnswer begun(Status status) {
  const bool refused = status.code() == StatusCode::kInvalidArgument;
  return {.status = std::move(status), .refused = refused};
}

}  // namespace driftless
