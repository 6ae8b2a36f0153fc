// SPDX-License-Identifier: Apache-2.0
// The library of the status server, loaded on demand (plugin/job/roads.h).
#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/roads.h"

extern "C" __attribute__((visibility("default"))) const driftless::MonitorTable*
driftless_monitor_table() {
  static const driftless::MonitorTable table{driftless::build_text(),
                                             &driftless::start_http_server};
  return &table;
}
