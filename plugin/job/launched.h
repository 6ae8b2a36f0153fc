// SPDX-License-Identifier: Apache-2.0
// Whether an MPI launcher started this process.
#pragma once

namespace driftless {

// By what launchers leave in the environment. For programs, and for libraries whose caller left it
// open; components are told.
[[nodiscard]] bool launched_by_mpi();

}  // namespace driftless
