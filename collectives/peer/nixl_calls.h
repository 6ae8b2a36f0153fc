// SPDX-License-Identifier: Apache-2.0
// NIXL's C interface, from libnixl_capi.so of any release from 1.0 on. It is loaded when a process
// first needs it: nothing links to it, and Driftless does not ship it. The declarations are our
// own.
//
// It is searched for at road.peer.library if that is set; otherwise where the loader searches, then
// in the folder of PyPI's nixl-cu13 or nixl-cu12 beside the library that contains this code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace driftless::peer {

// Return values of the functions; negative: an error.
inline constexpr int kNixlDone = 0;
inline constexpr int kNixlInProgress = 1;

inline constexpr int kNixlHostMemory = 0;
inline constexpr int kNixlDeviceMemory = 1;
inline constexpr int kNixlReadOperation = 0;
inline constexpr int kNixlOneThread = 0;    // one thread calls its agent
inline constexpr int kNixlManyThreads = 1;  // several threads do; NIXL locks a mutex

struct NixlAgentConfig {
  bool progress_thread = false;
  bool listen_thread = false;
  int listen_port = 0;
  int threads = kNixlOneThread;
  unsigned workers = 0;
  std::uint64_t progress_delay_us = 0;
  std::uint64_t listen_delay_us = 0;
  bool telemetry = false;
};

// All handles belong to NIXL.
struct NixlCalls {
  int (*create_configured_agent)(const char* name, const NixlAgentConfig* config, void** agent);
  int (*destroy_agent)(void* agent);
  int (*get_plugin_params)(void* agent, const char* plugin, void** memory_kinds, void** params);
  int (*params_add)(void* params, const char* key, const char* value);
  int (*destroy_params)(void* params);
  int (*destroy_mem_list)(void* memory_kinds);
  int (*create_backend)(void* agent, const char* plugin, void* params, void** backend);
  int (*destroy_backend)(void* backend);
  int (*create_opt_args)(void** options);
  int (*destroy_opt_args)(void* options);
  int (*opt_args_add_backend)(void* options, void* backend);
  int (*create_reg_dlist)(int memory_kind, void** list);
  int (*destroy_reg_dlist)(void* list);
  int (*reg_dlist_add_desc)(void* list, std::uintptr_t address, std::size_t size,
                            std::uint64_t device, const void* metadata, std::size_t metadata_size);
  int (*register_mem)(void* agent, void* list, void* options);
  int (*deregister_mem)(void* agent, void* list, void* options);
  int (*get_local_md)(void* agent, void** bytes, std::size_t* size);  // bytes: from malloc()
  int (*load_remote_md)(void* agent, const void* bytes, std::size_t size, char** name);
  int (*invalidate_remote_md)(void* agent, const char* name);
  int (*create_xfer_dlist)(int memory_kind, void** list);
  int (*destroy_xfer_dlist)(void* list);
  int (*xfer_dlist_add_desc)(void* list, std::uintptr_t address, std::size_t size,
                             std::uint64_t device);
  int (*create_xfer_req)(void* agent, int operation, void* local, void* remote, const char* name,
                         void** request, void* options);
  int (*post_xfer_req)(void* agent, void* request, void* options);
  int (*get_xfer_status)(void* agent, void* request);
  int (*release_xfer_req)(void* agent, void* request);
  int (*destroy_xfer_req)(void* request);
};

// `library`: PeerOptions::library. kUnsupported, with the loader's reason and what to install.
// Thread-safe; the library stays loaded.
[[nodiscard]] Result<const NixlCalls*> nixl_calls(const std::string& library);

// Whether this host has an InfiniBand, RoCE or EFA device with an active port.
[[nodiscard]] bool has_fast_network();

}  // namespace driftless::peer
