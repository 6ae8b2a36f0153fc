// The library of the roads that need MPI, loaded by the module on demand (roads_access.h).
#include <dlfcn.h>
#include <mpi.h>

#include "module/roads_access.h"

namespace driftless::python {
namespace {

// Python loads modules without offering their symbols to others, and so was libmpi loaded now; but
// plugins of Open MPI find its symbols only where they are offered to all.
void offer_mpi() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Initialized), &found) == 0) return;
  dlopen(found.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

}  // namespace
}  // namespace driftless::python

extern "C" __attribute__((visibility("default"))) const driftless::python::RoadTable*
driftless_road_table() {
  static const driftless::python::RoadTable table{
      driftless::python::build_text(), &driftless::backends,
      [](const driftless::Config& config, driftless::JobRole role, bool launched) {
        driftless::python::offer_mpi();
        return driftless::JobProcess::join(config, role, launched);
      }};
  return &table;
}
