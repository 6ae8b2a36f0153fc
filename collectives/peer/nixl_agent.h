// SPDX-License-Identifier: Apache-2.0
// NixlAgent: one side of one-sided reads through NIXL: registers memory, describes it to others,
// loads what others describe, and reads. Every call may come from any thread.
//
// An agent that serves has a progress thread, which sleeps between its looks: without a delay it
// takes a whole core, and reads of both sides are four times slower on a small host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/peer/nixl_calls.h"

namespace driftless::peer {

enum class NixlRole : unsigned char { kReads, kServes };

// What a reader must load before it reads memory of this agent. Two numbers say what changed:
// `additions` counts registrations. `removals` counts memory that is not registered any more; a
// reader that loaded less drops what it has, because NIXL does not load changes.
struct NixlDescription {
  std::uint64_t removals = 0, additions = 0;
  std::string bytes;  // NIXL's own
};

// Bytes to be read into registered memory.
struct NixlMove {
  std::byte* to = nullptr;
  std::uint64_t from = 0;  // the address in the other process
  std::uint64_t size_bytes = 0;
};

// A read that was started. NIXL cannot cancel it: its memory stays registered, and is not used,
// until NixlAgent::ended().
using NixlRead = void*;

class NixlAgent : public std::enable_shared_from_this<NixlAgent> {
 public:
  // kUnsupported if NIXL is not there or has no UCX.
  [[nodiscard]] static Result<std::shared_ptr<NixlAgent>> make(const std::string& library,
                                                               NixlRole role);
  ~NixlAgent();
  NixlAgent(const NixlAgent&) = delete;
  NixlAgent& operator=(const NixlAgent&) = delete;

  // Registers memory until the result is destroyed, which keeps the agent.
  [[nodiscard]] Result<std::shared_ptr<const void>> add(std::span<std::byte> memory);
  // The same of a mapping of whole pages that others read by its addresses, and takes the mapping
  // over. Once the result is destroyed its addresses read as zeros, until the agent is: NIXL
  // follows an address that a late reader asks for, whether memory is registered there or not.
  [[nodiscard]] Result<std::shared_ptr<const void>> expose(std::span<std::byte> mapping);
  [[nodiscard]] Result<NixlDescription> describe();

  // Loads what another agent describes; returns the name of that agent. What was loaded before
  // stays.
  [[nodiscard]] Result<std::string> load(std::string_view description);
  void forget(const std::string& name);

  // kIo if the other agent cannot be reached.
  [[nodiscard]] Result<NixlRead> start(const std::string& name, std::span<const NixlMove> moves);
  // Whether it has ended; kIo if it failed. Call it until it has, and no more: it releases the
  // read.
  [[nodiscard]] Result<bool> ended(NixlRead read);

 private:
  NixlAgent(const NixlCalls* calls, void* agent) : calls_(calls), agent_(agent) {}
  [[nodiscard]] Status make_backend();
  [[nodiscard]] Result<void*> add_now(std::span<std::byte> memory);
  void remove(void* list);

  const NixlCalls* const calls_;
  void* const agent_;
  void* backend_ = nullptr;
  void* options_ = nullptr;  // names the backend
  std::mutex mutex_;
  NixlDescription described_;  // its bytes are empty if they are not made yet
  std::uint64_t removals_ = 0, additions_ = 0;
  std::vector<std::span<std::byte>> covered_;  // addresses that read as zeros
};

}  // namespace driftless::peer
