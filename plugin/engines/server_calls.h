// SPDX-License-Identifier: Apache-2.0
// The server calls that do not depend on how the weights are written: pause, cache, resume, label.
// Internal to engines/ and to the Python module.
#pragma once

#include "plugin/engines/engine_driver.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

[[nodiscard]] EngineAnswer vllm_server_call(const EngineLink& link, const EngineCall& call);
[[nodiscard]] EngineAnswer sglang_server_call(const EngineLink& link, const EngineCall& call);

// A POST to SGLang: ok if the answer is 2xx and does not contain "success": false.
[[nodiscard]] Status sglang_post(const EngineLink& link, std::string_view path, const Json& body,
                                 bool must);
// Returns once every tensor-parallel rank has finished its earlier calls. Ok, without waiting, for
// a server that does not have these calls: it offers no way to wait.
[[nodiscard]] Status sglang_meet(const EngineLink& link);
// Posts /update_weights_from_disk and waits until every tensor-parallel rank has finished it.
// SGLang itself answers when the first rank has: another rank may still read the files, and does
// not report it if they are gone.
[[nodiscard]] Status sglang_load(const EngineLink& link, const Json& body);
// Identifies the server process by fields of /server_info; empty: it has no field that differs
// between processes.
[[nodiscard]] std::string sglang_process(const Json& server_info);

// The answer to a begin: a 4xx means that the engine did not begin.
[[nodiscard]] inline EngineAnswer begun(Status status) {
  const bool refused = status.code() == StatusCode::kInvalidArgument;
  return {.status = std::move(status), .refused = refused};
}

}  // namespace driftless
