// SPDX-License-Identifier: Apache-2.0
// EngineTransport: carries the driver's calls (engine_driver.h) to one engine. vLLM and SGLang are
// two tables of how to say them over HTTP; engines that read files are two more.
//
// One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>

#include "core/status.h"
#include "plugin/engines/engine_driver.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

class EngineTransport {
 public:
  virtual ~EngineTransport() = default;
  // Never kWait or kEnd.
  [[nodiscard]] virtual EngineAnswer carry(const EngineCall& call) = 0;
  // A request has ended.
  virtual void ended() {}
  // For messages: the engine's address.
  [[nodiscard]] virtual const std::string& name() const = 0;
  // Whether waits are to be cut short.
  [[nodiscard]] virtual bool stopping() const { return false; }
  [[nodiscard]] virtual bool has_sessions() const { return true; }
};

// What kOpen asks of each rank. Workers of releases without agent.take_over know the source alone.
[[nodiscard]] Json open_arguments(const EngineCall& call);
// What kRead asks of each rank.
[[nodiscard]] Json read_arguments(const EngineCall& call);

// Carries a request to its end, and sleeps if the driver waits. The result's status names the
// engine.
[[nodiscard]] DriverResult run_request(EngineDriver& driver, EngineCall first,
                                       EngineTransport& transport);

// Which engine answers there: SGLang's /server_info has tp_size, vLLM's does not. kIo if none
// answers.
[[nodiscard]] Result<EngineKind> find_engine_kind(const EngineLink& link);

// vLLM with our worker extension: asked by /collective_rpc, committed in its weight transfer
// session.
[[nodiscard]] std::unique_ptr<EngineTransport> make_vllm_transport(EngineLink link);

// SGLang with our loader, as the server's --custom-weight-loader names it. `timeout`: for the
// ranks' answers, which come by files in a directory below `shm_dir` (of the host_shm road; the
// engine knows it, too).
[[nodiscard]] Result<std::unique_ptr<EngineTransport>> make_sglang_transport(
    EngineLink link, std::string loader, std::chrono::milliseconds timeout,
    const std::string& shm_dir);

// An engine of this process. `call` takes an operation ("rpc", "pause", "begin", ...) and its
// arguments as JSON, and returns JSON: of "rpc" an array with one reply of each rank, of
// "read_label" a string.
using InProcessCall =
    std::function<Result<std::string>(const std::string& operation, const std::string& arguments)>;
[[nodiscard]] std::unique_ptr<EngineTransport> make_in_process_transport(InProcessCall call);

// What engines that read files are given. The checkpoint is patched by whoever holds `lock`
// exclusively; engines read it while it is held shared.
struct DiskVersions {
  std::shared_timed_mutex lock;
  std::atomic<bool> writer_waits{false};  // nobody begins to read
  std::string checkpoint;
  EngineIdentity holds;  // of the checkpoint
  // The tensors that changed between `changed_from` and the checkpoint's version, whole, as a
  // directory; empty: only the checkpoint has them.
  std::string changed;
  std::uint64_t changed_from = 0;
  // Whether the files are as they were when they were patched; asked before and after every load,
  // while the lock is held shared.
  std::function<Status()> check;
};
// vLLM as it comes: its workers load the checkpoint again. `versions` outlives it.
[[nodiscard]] std::unique_ptr<EngineTransport> make_vllm_disk_transport(EngineLink link,
                                                                        DiskVersions& versions);
// SGLang as it comes: the changed tensors, or the whole checkpoint unless this transport itself
// brought this very server process to the version before. `check`: that the model at this path has
// the checkpoint's tensors, in their shapes; asked before the first update, because another shape
// ends the server.
[[nodiscard]] std::unique_ptr<EngineTransport> make_sglang_disk_transport(
    EngineLink link, DiskVersions& versions, std::function<Status(const std::string&)> check);

}  // namespace driftless
