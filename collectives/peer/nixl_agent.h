// SPDX-License-Identifier: Apache-2.0
// NixlAgent: one side of one-sided reads through NIXL. It registers memory, describes it to other
// agents, loads their descriptions, and reads. Thread-safe.
//
// An agent that serves has a progress thread, which sleeps between polls: without a delay it uses a
// whole core, and reads of both sides are four times slower on a small host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/peer/nixl_calls.h"

namespace driftless::peer {

enum class NixlRole : unsigned char { kReads, kServes };

// The description that a reader must load before it reads memory of this agent. `additions` counts
// registrations. `removals` counts registrations that ended; once it has grown, a reader drops the
// description that it has loaded, because NIXL loads only additions to it.
struct NixlDescription {
  std::uint64_t removals = 0, additions = 0;
  std::string bytes;  // in NIXL's format
};

// Bytes to read into registered memory.
struct NixlMove {
  std::byte* to = nullptr;
  std::uint64_t from = 0;  // address in the other process
  std::uint64_t size_bytes = 0;
};

// Where registered memory lies: on the host, or on a GPU.
struct NixlWhere {
  int kind = kNixlHostMemory;
  std::uint64_t device = 0;  // the GPU's number
};

// A read in progress. NIXL cannot cancel it: its memory stays registered and unused until
// NixlAgent::ended() returns true.
using NixlRead = void*;

class NixlAgent : public std::enable_shared_from_this<NixlAgent> {
 public:
  // kUnsupported if NIXL is missing or has no UCX.
  [[nodiscard]] static Result<std::shared_ptr<NixlAgent>> make(const std::string& library,
                                                               NixlRole role);
  ~NixlAgent();
  NixlAgent(const NixlAgent&) = delete;
  NixlAgent& operator=(const NixlAgent&) = delete;

  // Registers memory until the result is destroyed; the result keeps the agent alive.
  [[nodiscard]] Result<std::shared_ptr<const void>> add(std::span<std::byte> memory,
                                                        const NixlWhere& where = {});
  // The same for a mapping of whole pages that other processes read by address; takes the mapping
  // over. After the result is destroyed, its addresses read as zeros until the agent is destroyed:
  // NIXL reads any address that a late reader requests, even if no memory is registered there.
  [[nodiscard]] Result<std::shared_ptr<const void>> expose(std::span<std::byte> mapping);
  [[nodiscard]] Result<NixlDescription> describe();

  // Loads another agent's description; returns that agent's name. Earlier descriptions stay.
  [[nodiscard]] Result<std::string> load(std::string_view description);
  void forget(const std::string& name);

  // Reads host memory of the other agent. `into`: where the moves' own memory lies. kIo if the
  // other agent cannot be reached.
  [[nodiscard]] Result<NixlRead> start(const std::string& name, std::span<const NixlMove> moves,
                                       const NixlWhere& into = {});
  // Whether the read has ended; kIo if it failed. Call it until it returns true or an error, and
  // not again: it then releases the read.
  [[nodiscard]] Result<bool> ended(NixlRead read);

 private:
  NixlAgent(const NixlCalls* calls, void* agent) : calls_(calls), agent_(agent) {}
  [[nodiscard]] Status make_backend();
  [[nodiscard]] Result<void*> add_now(std::span<std::byte> memory, const NixlWhere& where);
  void remove(void* list);

  const NixlCalls* const calls_;
  void* const agent_;
  void* backend_ = nullptr;
  void* options_ = nullptr;  // contains the backend
  std::mutex mutex_;
  NixlDescription described_;  // its bytes are empty until they are made
  std::uint64_t removals_ = 0, additions_ = 0;
  std::vector<std::span<std::byte>> covered_;  // addresses that read as zeros
};

}  // namespace driftless::peer
