// SPDX-License-Identifier: Apache-2.0
// NCCL's functions, from libnccl.so.2. A process loads it when it first needs it; nothing links to
// it. The loader searches where it searches dependencies of the library that contains this code.
// For a wheel these places include the folder of PyPI's package nvidia-nccl-cu13, beside that of
// Driftless.
#pragma once

#include <nccl.h>

#include "core/status.h"

namespace driftless::nccl {

struct NcclCalls {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
};

// kUnsupported, with the loader's reason and what to install. Thread-safe; the library stays
// loaded.
[[nodiscard]] Result<const NcclCalls*> nccl_calls();

}  // namespace driftless::nccl
