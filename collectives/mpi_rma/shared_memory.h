// SPDX-License-Identifier: Apache-2.0
// Room for windows in this host's shared memory. Asked before MPI is: Open MPI's processes do not
// all return when one of them cannot make a shared window.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace driftless::mpi_rma {

// kNoSpace where the directory in which MPI keeps shared windows has not `needed_bytes` free. Ok
// where that cannot be learnt.
[[nodiscard]] Status check_shared_memory(std::uint64_t needed_bytes);

}  // namespace driftless::mpi_rma
