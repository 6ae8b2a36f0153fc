// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/road_kind.h"
#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless {
namespace shared_fs {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(SharedFsOptions, field)
constexpr std::string_view kCommand = "a shell command";

constexpr std::array kKeys = {
    Rows::key<setting::Text, DRIFTLESS_FIELD(dir)>("road.shared_fs.dir", setting::kPath,
                                                   "The directory that both sides see")
        .once("road.dir"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(foreign_base)>(
        "road.shared_fs.foreign_base", setting::kPath,
        "For rollouts and agents, if slime, miles or TRL writes road.shared_fs.dir: the checkpoint "
        "from which that trainer started")
        .once("road.foreign_base"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(before_visible)>(
        "road.shared_fs.before_visible", kCommand,
        "Run by every trainer rank that publishes, once its files of a version are written and "
        "before any process can see the version")
        .once("road.before_visible"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(after_publish)>(
        "road.shared_fs.after_publish", kCommand,
        "Run by the leading trainer once a version is visible")
        .once("road.after_publish"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(before_read)>(
        "road.shared_fs.before_read", kCommand, "Run by a rollout before it lists the directory")
        .once("road.before_read"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(hook_timeout)>(
        "road.shared_fs.hook_timeout", "Deadline of each of these commands")
        .once("road.hook_timeout"),
    Rows::key<setting::Count<1, kMostPacks>, DRIFTLESS_FIELD(part_files)>(
        "road.shared_fs.part_files",
        "road.layout: frames: the most files that hold the parts of a version. If more trainer "
        "ranks publish, several of them share a file")
        .once("road.part_files"),
    poll_first<DRIFTLESS_FIELD(poll_first)>(),
    poll_longest<DRIFTLESS_FIELD(poll_longest)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
};
#undef DRIFTLESS_FIELD

Status check(const RoadOptions& given, const RoadUse& use) {
  const auto& options = options_in<SharedFsOptions>(given);
  if (use.fallback && options.dir.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "road.shared_fs.dir is missing: shared_fs, as a fallback, needs a directory that "
                 "both sides see (or --set road.shared_fs.dir=DIR)");
  }
  if (use.chosen && options.dir.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "road.shared_fs.dir is missing: road.kind: shared_fs needs a directory that both "
                 "sides see (or --set road.shared_fs.dir=DIR)");
  }
  if (use.chosen || options.foreign_base.empty()) return {};
  return error(StatusCode::kInvalidArgument, "road.shared_fs.foreign_base: ", options.foreign_base,
               " is for directories, and another road is chosen: set road.kind: shared_fs and "
               "road.shared_fs.dir");
}

std::string_view variant(const RoadOptions&, std::string_view layout) {
  return layout == "hdf5" ? layout : "";
}

std::string directory(const RoadOptions& options) {
  return options_in<SharedFsOptions>(options).dir;
}

}  // namespace
}  // namespace shared_fs

constinit const RoadKind kSharedFsKind{.name = "shared_fs",
                                       .defaults = [] { return RoadOptions(SharedFsOptions()); },
                                       .keys = shared_fs::kKeys,
                                       .check = shared_fs::check,
                                       .variant = shared_fs::variant,
                                       .directory = shared_fs::directory,
                                       .keeps = true,
                                       .place_key = "road.shared_fs.dir"};

}  // namespace driftless
