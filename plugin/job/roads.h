// SPDX-License-Identifier: Apache-2.0
// The table of roads by name, with what this build has.
//
// road_rows.h has the only list. A road is a folder in collectives/ and a row there; a road that
// was not built stays listed, with the reason. A row may also name a library with the road, which
// is loaded when a job asks for it (on_demand/loaded_library.h).
#pragma once

#include "collectives/hub/port.h"
#include "core/line_log.h"
#include "plugin/job/config.h"
#include "plugin/job/watchdog.h"
#include "plugin/observe/http_server.h"
#include "plugin/observe/prometheus_metrics.h"

namespace driftless {

class JobProcess;

[[nodiscard]] std::string_view to_string(JobRole role);  // "trainer", "rollout", "bystander"
// kInvalidArgument for a bystander.
[[nodiscard]] Status check_has_road(JobRole role);

// Whether a backend is linked here, is in a library that is loaded on demand, or was not built.
struct Availability {
  std::string_view needs;    // the external library on which it depends: "MPI"
  std::string_view library;  // our library that contains it, if that is loaded on demand
  std::string_view why_not;  // empty: built
};

struct Road {
  std::string_view name;  // road.kind; after a slash, a variant that another key chooses
  std::string_view help;
  Availability at = {};                // linked
  const RoadOpener* opener = nullptr;  // null: in a library, or not built
  // Whether a process of this role must be an MPI process; null: none must.
  bool (*needs_mpi)(JobRole role) = nullptr;
  std::string_view key = "road.kind";  // the setting that selects it
  bool takes_groups = false;           // works with trainers that were joined without MPI
  // Its trainer ranks connect to each other, and must recognize ranks of an earlier start of the
  // job (RoadPlace::start).
  bool knows_starts = false;
  // Hashes frames in device memory, for a road that has them there.
  Result<std::vector<Hash128>> (*hash)(std::span<const std::span<const std::byte>>) = nullptr;
  const RoadKind* kind = nullptr;  // its settings; null: it has none, or is a variant
};

// Opens the configuration's road for one process. Collective, if the processes meet by MPI.
[[nodiscard]] Result<OpenRoad> open_road(const Road& row, const Config& config, RoadPlace place);
// Implements ReadParts.
[[nodiscard]] Result<std::vector<PartReceipt>> parts_of_manifest(std::string_view manifest,
                                                                 std::string_view what);

// A component other than a road that may be missing from a build.
struct Part {
  std::string_view name, help, why_not;
};

using MakePort = std::shared_ptr<hub::Port> (*)(const HubOptions& options, std::string* bound);
using JoinMpi = Result<std::unique_ptr<JobProcess>> (*)(const Config& config, const Road& road,
                                                        JobRole role, const LateHandler& late);

// The functions that show a process's state; they need external libraries.
struct MonitorTable {
  const char* build = nullptr;  // build_text()
  StartHttpServer serve_http = nullptr;
  decltype(&make_prometheus_metrics) make_metrics = nullptr;
};

struct RoadTable {
  const char* build = nullptr;  // build_text(): must equal a loaded library's
  std::span<const Road> roads;
  std::span<const Part> parts;
  Availability mpi;                             // for processes that an MPI launcher started
  JoinMpi join_mpi = nullptr;                   // null: not linked here
  Availability monitor = {};                    // the status server
  const MonitorTable* monitor_parts = nullptr;  // null: not linked here
  Availability hub = {};                        // the hub over TCP
  MakePort make_port = nullptr;                 // null: not linked here
  decltype(&use_process_log) use_log = &use_process_log;  // the function of this table's library
};
// The linked table, or that of a library, which is loaded. kUnsupported, with the reason.
[[nodiscard]] Result<const MonitorTable*> monitor_of(const RoadTable& table);
// The table that is linked.
[[nodiscard]] const RoadTable& road_table();

// A road or a part, for output. backends() loads the libraries to test them.
struct Backend {
  std::string name;  // "mpi_rma", "shared_fs/hdf5", "engines", ...
  std::string help;
  bool built = false;
  std::string why_not;
};
[[nodiscard]] std::vector<Backend> backends(const RoadTable& table = road_table());

}  // namespace driftless
