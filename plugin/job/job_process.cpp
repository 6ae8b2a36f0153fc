// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/job_process.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "collectives/fallback/fallback_road.h"
#include "collectives/hub/hub_group.h"
#include "collectives/present_announcement.h"
#include "core/host_name.h"
#include "core/line_log.h"
#include "plugin/job/announced_run.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {
namespace {

// A process that does not use MPI.
class SoloProcess final : public JobProcess {
 public:
  SoloProcess(const Config& config, const Road& road, JobRole role, Launch launch)
      : JobProcess(config, road, role), launch_(std::move(launch)) {}

  // Rollouts that srun or torchrun started together number their files by rank. Trainers are one
  // process, unless a group joins them.
  [[nodiscard]] unsigned rank() const override {
    return role_ == JobRole::kRollout || groups_by_hub() ? launch_.rank : 0;
  }
  [[nodiscard]] unsigned trainers() const override {
    if (role_ != JobRole::kTrainer) return 0;
    return groups_by_hub() ? launch_.world : 1;
  }
  [[nodiscard]] unsigned rollouts() const override { return role_ == JobRole::kRollout ? 1 : 0; }
  [[nodiscard]] bool groups_by_hub() const override {
    return role_ == JobRole::kTrainer && config_.hub_group && launch_.world > 1;
  }
  [[nodiscard]] Result<std::unique_ptr<Group>> group() override {
    if (!groups_by_hub()) return std::unique_ptr<Group>(std::make_unique<SoloGroup>());
    const hub::GroupPlace place{launch_.rank, launch_.world, launch_.attempt,
                                concat("group/", ++groups_)};
    return hub::make_hub_group(port_, place, Deadline::after(config_.connect_deadline));
  }
  [[nodiscard]] Status close(const Deadline&) override {
    return open_.close ? open_.close() : Status();
  }
  [[noreturn]] void abandon(int exit_code) override { std::_Exit(exit_code); }

 private:
  [[nodiscard]] Result<RoadPlace> meet(std::uint64_t anchor_bytes, const Deadline&) override {
    RoadPlace place{role_, 0, 1, rollouts(), anchor_bytes, nullptr};
    // The address from a rollout's launcher is a host of the rollouts, not of the trainers.
    if (role_ == JobRole::kTrainer) place.leader_host = launch_.address;
    place.port = port_;
    return place;
  }

  const Launch launch_;
  unsigned groups_ = 0;  // groups made so far
};

// A number that is equal on all ranks of this start of the trainers, and differs from those of
// other starts.
Result<std::uint64_t> agree_on_start(Group& group, const Deadline& deadline) {
  group.next_epoch();
  const std::string drawn = to_hex(random_hash128());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string agreed, group.broadcast(drawn, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 start, hash128_from_hex(agreed));
  return start.low;
}

Status check_part(const RoadTable& table, std::string_view name, std::string_view key) {
  const auto at = std::ranges::find(table.parts, name, &Part::name);
  if (at == table.parts.end() || at->why_not.empty()) return {};
  return error(StatusCode::kUnsupported, key, ": ", name, " is not in this build: ", at->why_not);
}

// " mpi_rma shared_fs": the names of all roads, without their variants.
std::string names_of(const RoadTable& table) {
  std::string names;
  for (const Road& row : table.roads) {
    if (row.name.find('/') == std::string_view::npos) names += concat(" ", row.name);
  }
  return names;
}

Result<const Road*> road_of(const RoadTable& table, const Config& config) {
  const auto road =
      std::ranges::find(table.roads, std::string_view(config.road_row()), &Road::name);
  if (road == table.roads.end()) {
    return error(StatusCode::kInvalidArgument, "road.kind: '", config.road,
                 "' is no road; the roads are:", names_of(table));
  }
  if (!road->at.why_not.empty()) {
    return error(StatusCode::kUnsupported, road->key, ": ", road->name,
                 " is not in this build: ", road->at.why_not);
  }
  return &*road;
}

bool needs_mpi(const Road& road, JobRole role) {
  return road.needs_mpi != nullptr && road.needs_mpi(role);
}

// "shared_fs, object_store": the roads between hosts that this role can use without MPI.
std::string names_without_mpi(const RoadTable& table, JobRole role) {
  std::string names;
  for (const Road& row : table.roads) {
    const auto kind =
        std::ranges::find(road_kinds(), row.name, [](const RoadKind* one) { return one->name; });
    if (kind == road_kinds().end() || (*kind)->one_host || needs_mpi(row, role)) continue;
    names += concat(names.empty() ? "" : ", ", row.name);
  }
  return names;
}

Status check_launch(const RoadTable& table, const Road& road, JobRole role, const Launch& launch) {
  if (launch.mpi || !needs_mpi(road, role)) return {};
  const std::string started = launch.launcher == Launcher::kNone
                                  ? std::string("no launcher")
                                  : concat(to_string(launch.launcher), ", without MPI,");
  return error(StatusCode::kInvalidArgument, road.key, ": a ", to_string(role), " on ", road.name,
               " joins the others by MPI, and ", started,
               " started this process: start it by mpirun or srun --mpi=pmix, or use road.kind ",
               names_without_mpi(table, role),
               road.name.find('/') == std::string_view::npos ? "" : concat(", not ", road.name));
}

Result<const RoadTable*> load_roads(const Availability& at) {
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const table,
                             load_table(std::string(at.library), kRoadLibrarySymbol, at.needs));
  const auto* const roads = static_cast<const RoadTable*>(table);
  roads->use_log(process_log());
  return roads;
}

// Checks the libraries that the road loads itself.
Status usable(const Road& road) {
  return road.opener == nullptr || road.opener->usable == nullptr ? Status()
                                                                  : road.opener->usable();
}

// A process that an MPI launcher started uses MPI, whatever its road: if the MPI library contains
// the road, one library is enough.
bool library_of_mpi_has(const RoadTable& linked, const Config& config) {
  if (linked.mpi.library.empty()) return false;
  const Result<const RoadTable*> loaded = load_roads(linked.mpi);
  if (!loaded.ok()) return false;
  const Result<const Road*> road = road_of(**loaded, config);
  return road.ok() && (*road)->at.library.empty();
}

// The table that can open the configuration's road: the linked one, or a library's.
Result<const RoadTable*> table_for(const RoadTable& linked, const Config& config, bool launched) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, road_of(linked, config));
  const bool by_road =
      !launched || (!road->at.library.empty() && !library_of_mpi_has(linked, config));
  const Availability& at = by_road ? road->at : linked.mpi;
  if (launched && !linked.mpi.why_not.empty()) {
    return error(StatusCode::kUnsupported,
                 "this process was started by an MPI launcher, and MPI is not in this build: ",
                 linked.mpi.why_not);
  }
  const std::string context = launched ? std::string("this process was started by an MPI launcher")
                                       : concat("road.kind: ", config.road);
  Result<const RoadTable*> table = &linked;
  if (!at.library.empty()) table = load_roads(at);
  // The loaded library is the road's own, without MPI; it was chosen because MPI's library does not
  // load. Load MPI's library again, to return the reason as the error.
  if (table.ok() && launched && (*table)->join_mpi == nullptr) table = load_roads(linked.mpi);
  if (!table.ok()) return table.status().with_context(context);
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const found, road_of(**table, config));
  DRIFTLESS_RETURN_IF_ERROR(usable(*found).with_context(concat("road.kind: ", config.road)));
  return table;
}

Status check_parts(const RoadTable& table, const Config& config) {
  if (config.target == TargetKind::kDevice) {
    DRIFTLESS_RETURN_IF_ERROR(check_part(table, "cuda", "receiver.target: device"));
  }
  const SnapshotPlace place = config.gpu.snapshot;
  if (place == SnapshotPlace::kPinned || place == SnapshotPlace::kDevice) {
    DRIFTLESS_RETURN_IF_ERROR(check_part(table, "cuda", concat("snapshot: ", to_string(place))));
  }
  if (!config.monitor.address.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(check_part(table, "status_server", "monitor.address"));
  }
  return config.notified_engines().empty() ? Status() : check_part(table, "engines", "engines");
}

// The reason why a row that was built cannot be used here, or nothing.
std::string why_not_usable(const Road& row) {
  if (row.at.library.empty()) return std::string(usable(row).message());
  const Result<const RoadTable*> loaded = load_roads(row.at);
  if (!loaded.ok()) return std::string(loaded.status().message());
  const auto found = std::ranges::find((*loaded)->roads, row.name, &Road::name);
  if (found == (*loaded)->roads.end()) return {};
  return std::string(usable(*found).message());
}

}  // namespace

Result<const MonitorTable*> monitor_of(const RoadTable& table) {
  const Availability& at = table.monitor;
  if (table.monitor_parts != nullptr) return table.monitor_parts;
  if (at.library.empty()) {
    return error(StatusCode::kUnsupported, "status_server is not in this build: ", at.why_not);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const void* const loaded,
                             load_table(std::string(at.library), kMonitorLibrarySymbol, at.needs));
  return static_cast<const MonitorTable*>(loaded);
}

// A table that can make ports.
Result<const RoadTable*> hub_table(const RoadTable& table) {
  if (table.make_port != nullptr) return &table;
  if (table.hub.library.empty()) {
    return error(StatusCode::kUnsupported, "the hub is not in this build: ", table.hub.why_not);
  }
  return load_roads(table.hub);
}

// [trainers] Makes one port, shared by the group and every road.
Status JobProcess::make_port(const Launch& launch, JobRole role) {
  if (role != JobRole::kTrainer || !config_.hub_group) return {};
  if (launch.world == 0) {
    return error(StatusCode::kInvalidArgument, "hub.group: true, and ", to_string(launch.launcher),
                 " does not give this process's rank and the number of processes: set both by "
                 "driftless.launch(rank=, world=), or set RANK and WORLD_SIZE");
  }
  if (launch.world == 1) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const table, hub_table(*linked_));
  DRIFTLESS_ASSIGN_OR_RETURN(const HubOptions hub, hub::resolve(config_.hub, launch.address));
  port_ = table->make_port(hub, nullptr);
  return {};
}

Result<std::unique_ptr<SendRoad>> JobProcess::sender(std::uint64_t anchor_bytes,
                                                     const Deadline& deadline, Group* joined) {
  DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
  if (joined != nullptr && !road_.takes_groups) {
    return error(
        StatusCode::kInvalidArgument, road_.key, ": ", road_.name,
        " joins its trainers itself, and a group was given: give none, or use another road");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(RoadPlace place, meet(anchor_bytes, deadline));
  if (joined != nullptr) {
    place.rank = joined->rank();
    place.trainers = joined->size();
    if (road_.knows_starts) {
      DRIFTLESS_ASSIGN_OR_RETURN(place.start, agree_on_start(*joined, deadline));
    }
  }
  const std::unique_ptr<Watchdog> watched = watch();
  DRIFTLESS_ASSIGN_OR_RETURN(open_, open(place, deadline));
  return open_.sender();
}

Result<std::unique_ptr<ReceiveRoad>> JobProcess::receiver(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadPlace place, meet(0, deadline));
  std::unique_ptr<Watchdog> watched = watch();
  DRIFTLESS_ASSIGN_OR_RETURN(open_, open(place, deadline));
  watched.reset();  // a receiver waits for its trainer with its own deadlines
  return open_.receiver();
}

Result<OpenRoad> JobProcess::open(const RoadPlace& place, const Deadline& deadline) {
  if (fallback_ == nullptr) return open_road(road_, config_, place);
  const Config config = config_.of_fallback();
  const RoadOptions options = config.road_options();
  const RoadOpener* const opener = fallback_->opener;
  FallbackRoads roads;
  roads.first = open_road(road_, config_, place);
  const Result<OpenRoad> second = open_road(*fallback_, config, place);
  if (!second.ok()) return second.status().with_context(config_.kind().fallback_key);
  roads.second = *second;
  roads.name = config.road;
  roads.label = config_.kind().fallback_label;
  roads.leads = role_ == JobRole::kTrainer && place.rank == 0;
  if (roads.leads) {
    roads.held = [opener, options, deadline]() -> Result<std::optional<std::string>> {
      DRIFTLESS_ASSIGN_OR_RETURN(const auto history, opener->history(options));
      return present_announcement(*history, deadline);
    };
  }
  if (roads.first.ok()) roads.job = roads.first->job;
  roads.place_key = config.kind().place_key;
  roads.read = read_announced;
  roads.sign = with_job;
  roads.withdraw_end = [opener, options] { return opener->withdraw_end(options); };
  roads.publish_end = [opener, options](std::string_view text) {
    return opener->publish_end(options, text);
  };
  roads.fetch_end = second->fetch_end;
  if (!roads.fetch_end) roads.fetch_end = [opener, options] { return opener->fetch_end(options); };
  roads.log = [](std::string_view line) { process_log().warning(line); };
  return open_with_fallback(std::move(roads));
}

Result<std::unique_ptr<ReceiveRoad>> JobProcess::history() {
  if (keeping().opener->history == nullptr) return std::unique_ptr<ReceiveRoad>();
  return keeping().opener->history(keeping_config().road_options());
}

Status JobProcess::withdraw_end() {
  if (open_.withdraw_end) return open_.withdraw_end();
  const auto withdraw = road_.opener->withdraw_end;
  return withdraw == nullptr ? Status() : withdraw(config_.road_options());
}

Status JobProcess::publish_end(std::string_view text, const Deadline&) {
  if (open_.publish_end) return open_.publish_end(text);
  const auto publish = road_.opener->publish_end;
  return publish == nullptr ? Status() : publish(config_.road_options(), text);
}

Result<std::optional<std::string>> JobProcess::fetch_end() {
  if (open_.fetch_end) return open_.fetch_end();
  if (road_.opener->fetch_end == nullptr) return std::optional<std::string>();
  return road_.opener->fetch_end(config_.road_options());
}

std::string_view to_string(JobRole role) {
  switch (role) {
    case JobRole::kTrainer: return "trainer";
    case JobRole::kRollout: return "rollout";
    case JobRole::kBystander: return "bystander";
  }
  return "unknown";
}

Status check_has_road(JobRole role) {
  if (role != JobRole::kBystander) return {};
  return error(StatusCode::kInvalidArgument,
               "a bystander has no group and no road: only trainers and rollouts have");
}

Status check_available(const RoadTable& roads, const Config& config, const Launch& launch,
                       std::optional<JobRole> role) {
  DRIFTLESS_RETURN_IF_ERROR(check_parts(roads, config));
  DRIFTLESS_RETURN_IF_ERROR(table_for(roads, config, launch.mpi).status());
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, road_of(roads, config));
  return role ? check_launch(roads, *road, *role, launch) : Status();
}

bool takes_groups(const RoadTable& roads, const Config& config) {
  const Result<const Road*> road = road_of(roads, config);
  return road.ok() && (*road)->takes_groups;
}

Result<std::unique_ptr<JobProcess>> join_job(const RoadTable& roads, const Config& config,
                                             JobRole role, const Launch& launch,
                                             const LateHandler& late) {
  DRIFTLESS_RETURN_IF_ERROR(check_available(roads, config, launch, role));
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const table, table_for(roads, config, launch.mpi));
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, road_of(*table, config));
  std::unique_ptr<JobProcess> process;
  if (launch.mpi) {
    DRIFTLESS_ASSIGN_OR_RETURN(process, table->join_mpi(config, *road, role, late));
  } else {
    process = std::make_unique<SoloProcess>(config, *road, role, launch);
  }
  process->linked_ = &roads;
  if (!launch.mpi) DRIFTLESS_RETURN_IF_ERROR(process->make_port(launch, role));
  if (!config.fallback().empty()) {
    const Config other = config.of_fallback();
    DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const found, table_for(roads, other, launch.mpi));
    DRIFTLESS_ASSIGN_OR_RETURN(process->fallback_, road_of(*found, other));
  }
  process_log().set_name(role == JobRole::kRollout ? receiver_id(config, *process, process->rank())
                                                   : concat(to_string(role), ".", process->rank()));
  return process;
}

std::string receiver_id(const Config& config, const JobProcess& process, unsigned rollout) {
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "_%02u", rollout);
  if (!config.receiver_id.empty()) {
    return config.receiver_id + (process.rollouts() > 1 ? number.data() : "");
  }
  if (process.together() || process.rollouts() > 1) return concat("rollout", number.data());
  return concat("rollout_", host_name(), "_", ::getpid());
}

std::string filled_in(std::string path, std::string_view role, unsigned rank) {
  const auto replace = [&](std::string_view word, std::string_view value) {
    for (std::size_t at = 0; (at = path.find(word, at)) != std::string::npos; at += value.size()) {
      path.replace(at, word.size(), value);
    }
  };
  replace("{role}", role);
  replace("{rank}", std::to_string(rank));
  return path;
}

Result<const Road*> find_road(const RoadTable& roads, const Config& config) {
  DRIFTLESS_ASSIGN_OR_RETURN(const RoadTable* const table, table_for(roads, config, false));
  return road_of(*table, config);
}

std::vector<Backend> backends(const RoadTable& table) {
  std::vector<Backend> list;
  for (const Road& road : table.roads) {
    std::string why_not(road.at.why_not);
    if (why_not.empty()) why_not = why_not_usable(road);
    list.push_back(
        {std::string(road.name), std::string(road.help), why_not.empty(), std::move(why_not)});
  }
  for (const Part& part : table.parts) {
    list.push_back({std::string(part.name), std::string(part.help), part.why_not.empty(),
                    std::string(part.why_not)});
  }
  return list;
}

}  // namespace driftless
