// SPDX-License-Identifier: Apache-2.0
// EngineTransport: carries the driver's calls (engine_driver.h) to one engine. vLLM and SGLang each
// have a transport to our workers and one for engines that load a checkpoint.
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
  // `call` is never kWait or kEnd.
  [[nodiscard]] virtual EngineAnswer carry(const EngineCall& call) = 0;
  // The driver's request has ended.
  virtual void ended() {}
  // The engine's address, for messages.
  [[nodiscard]] virtual const std::string& name() const = 0;
  // Whether waits shall be cut short.
  [[nodiscard]] virtual bool stopping() const { return false; }
  [[nodiscard]] virtual bool has_sessions() const { return true; }
};

// The arguments of kOpen for each rank. Workers of releases without agent.take_over accept only the
// source.
[[nodiscard]] Json open_arguments(const EngineCall& call);
// The arguments of kRead for each rank.
[[nodiscard]] Json read_arguments(const EngineCall& call);

// Carries a request to its end and sleeps when the driver waits. The result's status names the
// engine.
[[nodiscard]] DriverResult run_request(EngineDriver& driver, EngineCall first,
                                       EngineTransport& transport);

// Finds out which engine answers at the link: SGLang's /server_info has tp_size, vLLM's does not.
// kIo if there is no answer.
[[nodiscard]] Result<EngineKind> find_engine_kind(const EngineLink& link);

// vLLM with our worker extension: the ranks are called by /collective_rpc, and commits go through
// vLLM's weight transfer session.
[[nodiscard]] std::unique_ptr<EngineTransport> make_vllm_transport(EngineLink link);

// SGLang with our loader, named by the server's --custom-weight-loader. `timeout`: limit for the
// ranks' answers, which arrive as files in a directory below `shm_dir` (of the host_shm road; the
// engine has the same setting).
[[nodiscard]] Result<std::unique_ptr<EngineTransport>> make_sglang_transport(
    EngineLink link, std::string loader, std::chrono::milliseconds timeout,
    const std::string& shm_dir);

// An engine in this process. `call` takes an operation ("rpc", "pause", "begin", ...) and its
// arguments as JSON, and returns JSON: for "rpc" an array with one reply per rank, for "read_label"
// a string.
using InProcessCall =
    std::function<Result<std::string>(const std::string& operation, const std::string& arguments)>;
[[nodiscard]] std::unique_ptr<EngineTransport> make_in_process_transport(InProcessCall call);

// The version offered to engines that read files. The process that patches the checkpoint holds
// `lock` exclusively; transports hold it shared while their engines read.
struct DiskVersions {
  std::shared_timed_mutex lock;
  std::atomic<bool> writer_waits{false};  // a writer waits for the lock: start no new read
  std::string checkpoint;
  EngineIdentity holds;  // version of the checkpoint
  // A directory with all tensors, whole, that changed between `changed_from` and the checkpoint's
  // version; empty: only the checkpoint has them.
  std::string changed;
  std::uint64_t changed_from = 0;
  // Whether the files are still as they were patched. Called before and after every load, with the
  // lock held shared.
  std::function<Status()> check;
};
// Unmodified vLLM: its workers load the checkpoint again. `versions` outlives it.
[[nodiscard]] std::unique_ptr<EngineTransport> make_vllm_disk_transport(EngineLink link,
                                                                        DiskVersions& versions);
// Unmodified SGLang. It loads only the changed tensors if this transport itself brought the same
// server process to the version before, otherwise the whole checkpoint. `check`: whether the model
// at this path has the checkpoint's tensors in the same shapes; called before the first update,
// because another shape ends the server.
[[nodiscard]] std::unique_ptr<EngineTransport> make_sglang_disk_transport(
    EngineLink link, DiskVersions& versions, std::function<Status(const std::string&)> check);

}  // namespace driftless
