// SPDX-License-Identifier: Apache-2.0
// Roads by name: the table of what this build has.
//
// road_rows.h has the only list. A road is a folder in collectives/ and a row there; one that was
// not built stays listed, with the reason. A row may also say that the road is in a library which
// is loaded when a job asks for it (on_demand/loaded_library.h).
#pragma once

#include "collectives/hub/port.h"
#include "plugin/job/config.h"
#include "plugin/job/watchdog.h"
#include "plugin/observe/http_server.h"
#include "plugin/observe/prometheus_metrics.h"

namespace driftless {

class JobProcess;

[[nodiscard]] std::string_view to_string(JobRole role);  // "trainer", "rollout", "bystander"
// kInvalidArgument for a bystander.
[[nodiscard]] Status check_has_road(JobRole role);

// Whether a backend is linked here, is in a library that is loaded on demand, or is not built.
struct Availability {
  std::string_view needs;    // the library of others that it brings along: "MPI"
  std::string_view library;  // ours, if it is in one that is loaded
  std::string_view why_not;  // empty: built
};

struct Road {
  std::string_view name;  // road.kind; after a slash, a variant that another key chooses
  std::string_view help;
  Availability at = {};                // linked
  const RoadOpener* opener = nullptr;  // null: in a library, or not built
  // Whether a process of this role has to be an MPI process; null: none.
  bool (*needs_mpi)(JobRole role) = nullptr;
  std::string_view key = "road.kind";  // the setting that asks for it
  bool takes_groups = false;           // of trainers that something else than MPI joined
  // Its trainer ranks connect to each other, and have to know ranks of an earlier start of the job
  // (RoadPlace::start).
  bool knows_starts = false;
  // For a road of frames in device memory.
  Result<std::vector<Hash128>> (*hash)(std::span<const std::span<const std::byte>>) = nullptr;
  const RoadKind* kind = nullptr;  // its settings; null: it has none, or is a variant
};

// The configuration's road, opened for one process. Collective, if the processes meet by MPI.
[[nodiscard]] Result<OpenRoad> open_road(const Road& row, const Config& config, RoadPlace place);
// A ReadParts.
[[nodiscard]] Result<std::vector<PartReceipt>> parts_of_manifest(std::string_view manifest,
                                                                 std::string_view what);

// What is no road, and may be missing all the same.
struct Part {
  std::string_view name, help, why_not;
};

using MakePort = std::shared_ptr<hub::Port> (*)(const HubOptions& options, std::string* bound);
using JoinMpi = Result<std::unique_ptr<JobProcess>> (*)(const Config& config, const Road& road,
                                                        JobRole role, const LateHandler& late);

// What shows the state of a process, and needs libraries of others.
struct MonitorTable {
  const char* build = nullptr;  // build_text()
  StartHttpServer serve_http = nullptr;
  decltype(&make_prometheus_metrics) make_metrics = nullptr;
};

struct RoadTable {
  const char* build = nullptr;  // build_text(): a loaded library's must be the same
  std::span<const Road> roads;
  std::span<const Part> parts;
  Availability mpi;                             // of processes that an MPI launcher started
  JoinMpi join_mpi = nullptr;                   // null: not linked here
  Availability monitor = {};                    // of the status server
  const MonitorTable* monitor_parts = nullptr;  // null: not linked here
  Availability hub = {};                        // over TCP
  MakePort make_port = nullptr;                 // null: not linked here
};
// As monitor_of().
[[nodiscard]] Result<MakePort> port_maker_of(const RoadTable& table);
// What is linked, or in a library that is loaded. kUnsupported, with the reason.
[[nodiscard]] Result<const MonitorTable*> monitor_of(const RoadTable& table);
// The table that is linked.
[[nodiscard]] const RoadTable& road_table();

// A row of either kind, for people. Loads the libraries to know.
struct Backend {
  std::string name;  // "mpi_rma", "shared_fs/hdf5", "engines", ...
  std::string help;
  bool built = false;
  std::string why_not;
};
[[nodiscard]] std::vector<Backend> backends(const RoadTable& table = road_table());

}  // namespace driftless
