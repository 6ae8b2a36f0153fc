// SPDX-License-Identifier: Apache-2.0
// Roads by name: the table of what this build has.
//
// roads.cpp holds the only table. A road is a folder in collectives/ and a row there; one that was
// not built stays listed, with the reason. A row may also say that the road is in a library which
// is loaded when a job asks for it (on_demand/loaded_library.h).
#pragma once

#include <functional>

#include "plugin/job/config.h"
#include "plugin/job/watchdog.h"

namespace driftless {

class JobProcess;
struct MpiComms;

// A bystander is a process of the trainer that publishes nothing: it joins and closes with the
// others, and has neither a group nor a road.
enum class JobRole : unsigned char { kTrainer, kRollout, kBystander };
[[nodiscard]] std::string_view to_string(JobRole role);  // "trainer", "rollout", "bystander"
// kInvalidArgument for a bystander.
[[nodiscard]] Status check_has_road(JobRole role);

// Where a process stands among those that use the road.
struct RoadPlace {
  JobRole role = JobRole::kTrainer;
  unsigned rank = 0;  // among those of its role
  unsigned trainers = 1;
  unsigned rollouts = 0;
  std::uint64_t anchor_bytes = 0;  // of the rank that needs most, if the configuration leaves it
  const MpiComms* mpi = nullptr;   // null: the process knows of no other
};

// A road that one process has opened. It outlives what its functions make.
struct OpenRoad {
  std::function<Result<std::unique_ptr<SendRoad>>()> sender;
  std::function<Result<std::unique_ptr<ReceiveRoad>>()> receiver;
  // As the row's, for a road that keeps a connection to hear it by; may be empty.
  std::function<Result<std::optional<std::string>>()> hear_end;
  std::function<Status()> close;  // collective, at an orderly end; may be empty
  bool threads = true;            // may be used by other threads than the one that opened it
};

// Whether a backend is linked here, is in a library that is loaded on demand, or is not built.
struct Availability {
  std::string_view needs;    // the library of others that it brings along: "MPI"
  std::string_view library;  // ours, if it is in one that is loaded
  std::string_view why_not;  // empty: built
};

struct Road {
  std::string_view name;  // road.kind; after a slash, a variant that another key chooses
  std::string_view help;
  Availability at;
  // Opens it for one process. Collective, if the processes meet by MPI.
  Result<OpenRoad> (*open)(const Config& config, const RoadPlace& place) = nullptr;
  // What follows may be null.
  // Reads what the road held before this process; null: it forgets.
  Result<std::unique_ptr<ReceiveRoad>> (*history)(const Config& config) = nullptr;
  // Whether a process of this role has to be an MPI process; null: none.
  bool (*needs_mpi)(const Config& config, JobRole role) = nullptr;
  // For rollouts that mpirun did not start beside the trainer (JobProcess has the contracts).
  Status (*withdraw_end)(const Config& config) = nullptr;
  Status (*tell_end)(const Config& config, std::string_view text) = nullptr;
  Result<std::optional<std::string>> (*hear_end)(const Config& config) = nullptr;
  std::string_view key = "road.kind";  // the setting that asks for it
  bool takes_groups = false;           // of trainers that something else than MPI joined
  // A URL, for so long, that opens the run to rollouts without credentials.
  Result<std::string> (*share)(const Config& config, std::chrono::seconds valid) = nullptr;
};

// What is no road, and may be missing all the same.
struct Part {
  std::string_view name, help, why_not;
};

using JoinMpi = Result<std::unique_ptr<JobProcess>> (*)(const Config& config, const Road& road,
                                                        JobRole role, const LateHandler& late);

struct RoadTable {
  const char* build = nullptr;  // build_text(): a loaded library's must be the same
  std::span<const Road> roads;
  std::span<const Part> parts;
  Availability mpi;            // of processes that an MPI launcher started
  JoinMpi join_mpi = nullptr;  // null: not linked here
};
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
