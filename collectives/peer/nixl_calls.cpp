// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/nixl_calls.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

namespace driftless::peer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libnixl_capi.so";

// The first function that the library lacks, or null.
const char* find_calls(void* library, NixlCalls& calls) {
  const char* missing = nullptr;
  const auto find = [&](auto& call, const char* symbol) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, symbol));
    if (call == nullptr && missing == nullptr) missing = symbol;
  };
#define DRIFTLESS_NIXL_CALL(name) find(calls.name, "nixl_capi_" #name)
  DRIFTLESS_NIXL_CALL(create_configured_agent);
  DRIFTLESS_NIXL_CALL(destroy_agent);
  DRIFTLESS_NIXL_CALL(get_plugin_params);
  DRIFTLESS_NIXL_CALL(params_add);
  DRIFTLESS_NIXL_CALL(destroy_params);
  DRIFTLESS_NIXL_CALL(destroy_mem_list);
  DRIFTLESS_NIXL_CALL(create_backend);
  DRIFTLESS_NIXL_CALL(destroy_backend);
  DRIFTLESS_NIXL_CALL(create_opt_args);
  DRIFTLESS_NIXL_CALL(destroy_opt_args);
  DRIFTLESS_NIXL_CALL(opt_args_add_backend);
  DRIFTLESS_NIXL_CALL(create_reg_dlist);
  DRIFTLESS_NIXL_CALL(destroy_reg_dlist);
  DRIFTLESS_NIXL_CALL(reg_dlist_add_desc);
  DRIFTLESS_NIXL_CALL(register_mem);
  DRIFTLESS_NIXL_CALL(deregister_mem);
  DRIFTLESS_NIXL_CALL(get_local_md);
  DRIFTLESS_NIXL_CALL(load_remote_md);
  DRIFTLESS_NIXL_CALL(invalidate_remote_md);
  DRIFTLESS_NIXL_CALL(create_xfer_dlist);
  DRIFTLESS_NIXL_CALL(destroy_xfer_dlist);
  DRIFTLESS_NIXL_CALL(xfer_dlist_add_desc);
  DRIFTLESS_NIXL_CALL(create_xfer_req);
  DRIFTLESS_NIXL_CALL(post_xfer_req);
  DRIFTLESS_NIXL_CALL(get_xfer_status);
  DRIFTLESS_NIXL_CALL(release_xfer_req);
  DRIFTLESS_NIXL_CALL(destroy_xfer_req);
#undef DRIFTLESS_NIXL_CALL
  return missing;
}

// The paths of NIXL in PyPI's packages beside the library or program that contains this code.
std::vector<std::string> beside_us() {
  Dl_info this_module{};
  if (dladdr(reinterpret_cast<void*>(&nixl_calls), &this_module) == 0 ||
      this_module.dli_fname == nullptr) {
    return {};
  }
  std::vector<std::string> places;
  std::error_code failure;
  fs::path folder = fs::absolute(this_module.dli_fname, failure).parent_path();
  for (int up = 0; up < 3 && !failure; ++up, folder = folder.parent_path()) {
    for (const char* const package : {".nixl_cu13.mesonpy.libs", ".nixl_cu12.mesonpy.libs"}) {
      const fs::path there = folder / package / kLibrary;
      if (fs::exists(there, failure)) places.push_back(there.string());
    }
  }
  return places;
}

Result<NixlCalls> load(const std::string& library) {
  std::vector<std::string> places = {library.empty() ? std::string(kLibrary) : library};
  if (library.empty()) {
    for (std::string& each : beside_us()) places.push_back(std::move(each));
  }
  // PyPI's NIXL loads the system's libefa next to its own verbs libraries. If libefa and its
  // dependencies are not already loaded and bound to each other, they are bound to NIXL's, and the
  // process crashes at exit.
  static_cast<void>(dlopen("libefa.so.1", RTLD_NOW | RTLD_LOCAL));
  std::string why;
  for (const std::string& place : places) {
    void* const loaded = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) {
      const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe)
      if (why.empty()) why = reason == nullptr ? place : reason;
      continue;
    }
    NixlCalls calls{};
    const char* const missing = find_calls(loaded, calls);
    if (missing == nullptr) return calls;
    return error(StatusCode::kUnsupported, "peer: NIXL: ", place, " has no ", missing,
                 ": it is older than 1.0; pip install --upgrade nixl-cu13");
  }
  return error(StatusCode::kUnsupported, "peer: NIXL cannot be loaded: ", why,
               "; pip install nixl-cu13 (nixl-cu12 for CUDA 12) in the same environment, or set "
               "road.peer.library to its libnixl_capi.so");
}

}  // namespace

Result<const NixlCalls*> nixl_calls(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::string, Result<NixlCalls>> loaded;
  const std::scoped_lock lock(mutex);
  auto found = loaded.find(library);
  if (found == loaded.end()) found = loaded.emplace(library, load(library)).first;
  if (!found->second.ok()) return found->second.status();
  return &*found->second;
}

bool has_fast_network() {
  std::error_code failure;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", failure)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", failure)) {
      std::string state;  // "4: ACTIVE"
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace driftless::peer
