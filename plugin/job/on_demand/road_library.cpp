// SPDX-License-Identifier: Apache-2.0
// A library of roads that need an external library, loaded on demand (plugin/job/roads.h).
#include "plugin/job/roads.h"

extern "C" __attribute__((visibility("default"))) const driftless::RoadTable*
driftless_road_table() {
  return &driftless::road_table();
}
