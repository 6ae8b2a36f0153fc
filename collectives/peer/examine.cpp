// SPDX-License-Identifier: Apache-2.0
// Tests on this host what each carrier needs: a port, memory with a descriptor, NIXL with UCX.
#include <dlfcn.h>

#include "collectives/hub/tcp/socket.h"
#include "collectives/peer/nixl_agent.h"
#include "collectives/peer/part_memory.h"
#include "collectives/peer/peer_road.h"

namespace driftless::peer {
namespace {

using enum FindingState;

constexpr std::uint64_t kTriedBytes = 1 << 20;
constexpr const char* kNoFastNetwork = "no active InfiniBand, RoCE or EFA port on this host";
constexpr const char* kInstall =
    "pip install nixl-cu13 (nixl-cu12 for CUDA 12) where trainers and rollouts run, or set "
    "road.peer.library";

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Whether an address with this host part belongs to this host.
bool is_local(const std::string& host) { return hub::listen_on(concat(host, ":0"), nullptr).ok(); }

// Tested for every carrier, because every trainer rank listens on TCP.
Finding examine_tcp(const PeerOptions& options) {
  std::string address = options.address, bound;
  if (address.empty() && options.hub.address.empty()) {
    return {"tcp", kSkip, "hub.address is empty: the launcher names the leading trainer's host"};
  }
  if (address.empty()) {
    const Result<std::string> host = hub::local_host_towards(options.hub.address);
    if (!host.ok()) return driftless::failed("tcp", host.status(), "correct hub.address");
    address = concat(*host, ":0");
  }
  const Status listens = hub::listen_on(address, &bound).status();
  if (listens.ok()) {
    return {"tcp", kOk,
            concat("parts can be served on ", options.address.empty() ? host_of(bound) : bound)};
  }
  if (!options.address.empty() && !is_local(host_of(address))) {
    return {"tcp", kWarn, concat("road.peer.address: ", address, " is not an address of this host"),
            "set an address of each trainer's host there; a rollout does not use it"};
  }
  return driftless::failed("tcp", listens,
                           options.address.empty()
                               ? "let processes of this host listen on a port"
                               : "set another road.peer.address, or end the port's process");
}

Finding examine_shm(const PeerOptions& options) {
  const bool alone = options.carrier == PeerCarrier::kShm;
  if (!alone && options.carrier != PeerCarrier::kAuto) {
    return {"shm", kSkip, "road.peer.carrier selects another carrier"};
  }
  Segment memory;
  const Status made = memory.reserve(kTriedBytes);
  if (!made.ok()) {
    return {"shm", alone ? kFail : kWarn, std::string(made.message()),
            "raise this process's limits of memory and file size (ulimit -v, ulimit -f), or set "
            "road.peer.carrier: tcp"};
  }
  const std::string& hub = options.hub.address;
  if (hub.empty() || is_local(host_of(hub))) {
    return {"shm", kOk, "processes of this host, in one network namespace, map each other's parts"};
  }
  const std::string apart = concat("hub.address: ", hub, " is not this host");
  if (!alone) return {"shm", kOk, concat(apart, "; used between processes of this host alone")};
  return {"shm", kFail, concat(apart, ", and shared memory ends at the host"),
          "set road.peer.carrier: auto"};
}

std::string file_of(const NixlCalls& calls) {
  Dl_info file{};
  const bool found = dladdr(reinterpret_cast<void*>(calls.create_configured_agent), &file) != 0;
  return found && file.dli_fname != nullptr ? file.dli_fname : "NIXL";
}

Finding examine_nixl(const PeerOptions& options) {
  const bool alone = options.carrier == PeerCarrier::kNixl;
  if (!alone && options.carrier != PeerCarrier::kAuto) {
    return {"nixl", kSkip, "road.peer.carrier selects another carrier"};
  }
  const bool fast = has_fast_network();
  const Result<const NixlCalls*> calls = nixl_calls(options.library);
  if (!alone && !fast) {
    return {"nixl", kSkip,
            concat(kNoFastNetwork, ": bytes travel by TCP between hosts; NIXL is ",
                   calls.ok() ? concat("there: ", file_of(**calls)) : "not there")};
  }
  Status there = calls.status();
  if (there.ok()) there = NixlAgent::make(options.library, NixlRole::kServes).status();
  if (!there.ok()) return {"nixl", alone ? kFail : kWarn, std::string(there.message()), kInstall};
  return {
      "nixl", kOk,
      concat(file_of(**calls), " has started UCX; ",
             fast ? "a fast network is there" : concat(kNoFastNetwork, ": UCX reads over TCP"))};
}

}  // namespace

// NIXL comes last, because it takes a second or two to start.
std::vector<Finding> examine(const RoadOptions& given, std::uint64_t /*space_bytes*/,
                             const Deadline& /*deadline*/) {
  const auto& options = options_in<PeerOptions>(given);
  return {examine_tcp(options), examine_shm(options), examine_nixl(options)};
}

}  // namespace driftless::peer
