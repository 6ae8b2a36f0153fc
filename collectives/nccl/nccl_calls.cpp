// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_calls.h"

#include <dlfcn.h>

#include <string>

namespace driftless::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

// A function that the library lacks, or null.
const char* find_calls(void* library, NcclCalls& calls) {
  const char* missing = nullptr;
  const auto find = [&](auto& call, const char* symbol) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, symbol));
    if (call == nullptr) missing = symbol;
  };
  find(calls.get_version, "ncclGetVersion");
  find(calls.get_unique_id, "ncclGetUniqueId");
  find(calls.get_error_string, "ncclGetErrorString");
  find(calls.get_last_error, "ncclGetLastError");
  find(calls.init_rank, "ncclCommInitRankConfig");
  find(calls.get_async_error, "ncclCommGetAsyncError");
  find(calls.finalize, "ncclCommFinalize");
  find(calls.abort, "ncclCommAbort");
  find(calls.group_start, "ncclGroupStart");
  find(calls.group_end, "ncclGroupEnd");
  find(calls.broadcast, "ncclBroadcast");
  return missing;
}

Result<NcclCalls> load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();  // NOLINT(concurrency-mt-unsafe)
    return error(StatusCode::kUnsupported,
                 "NCCL is needed and cannot be loaded: ", why == nullptr ? kLibrary : why,
                 "; pip install nvidia-nccl-cu13, or install the package libnccl2");
  }
  NcclCalls calls;
  if (const char* const missing = find_calls(library, calls)) {
    return error(StatusCode::kUnsupported, "NCCL: ", kLibrary, " has no ", missing,
                 ": it is older than 2.14; pip install --upgrade nvidia-nccl-cu13");
  }
  return calls;
}

}  // namespace

Result<const NcclCalls*> nccl_calls() {
  static const Result<NcclCalls> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace driftless::nccl
