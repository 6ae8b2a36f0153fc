// The library of the roads that need MPI, HDF5 or NCCL, loaded on demand (roads_access.h).
#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/on_demand/roads_access.h"

extern "C" __attribute__((visibility("default"))) const driftless::RoadTable*
driftless_road_table() {
  static const driftless::RoadTable table{driftless::build_text(), &driftless::backends,
                                          &driftless::check_built, &driftless::JobProcess::join};
  return &table;
}
