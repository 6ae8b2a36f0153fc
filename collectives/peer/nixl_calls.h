// SPDX-License-Identifier: Apache-2.0
// NIXL's C interface, from libnixl_capi.so of any release from 1.0 on. It is loaded when a process
// first needs it: nothing links it, and Driftless does not ship it. The declarations are our own.
//
// It is looked for at road.peer.library; else where the loader looks, then in the folder that
// PyPI's nixl-cu13 or nixl-cu12 has beside the library that this is in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace driftless::peer {

// What calls return; less than 0: an error.
inline constexpr int kNixlDone = 0;
inline constexpr int kNixlInProgress = 1;

inline constexpr int kNixlHostMemory = 0;
inline constexpr int kNixlReadOperation = 0;
inline constexpr int kNixlOneThread = 0;    // calls its agent
inline constexpr int kNixlManyThreads = 1;  // under a mutex of its own

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

// Handles are NIXL's.
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

// `library`: PeerOptions::library. kUnsupported, with the loader's reason and what to install. From
// any thread; stays loaded.
[[nodiscard]] Result<const NixlCalls*> nixl_calls(const std::string& library);

// Whether this host has an InfiniBand, RoCE or EFA device with an active port.
[[nodiscard]] bool has_fast_network();

}  // namespace driftless::peer
