// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/launched.h"

#include <cstdlib>

namespace driftless {

bool launched_by_mpi() {
  const auto has = [](const char* name) {
    return std::getenv(name) != nullptr;  // NOLINT(concurrency-mt-unsafe)
  };
  // torchrun's workers may have inherited the rest from a launcher that started torchrun once; they
  // are no MPI processes.
  if (has("TORCHELASTIC_RUN_ID")) return false;
  return has("OMPI_COMM_WORLD_SIZE") || has("PMIX_RANK") || has("PMI_RANK") ||
         has("MPI_LOCALNRANKS");
}

}  // namespace driftless
