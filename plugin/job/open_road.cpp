// SPDX-License-Identifier: Apache-2.0
// Opens a road for a process of a job, and wraps it if other tools write or read the directory.
#include "formats/manifest.h"
#include "plugin/interchange/foreign_directory.h"
#include "plugin/interchange/trl_writer.h"
#include "plugin/job/roads.h"

namespace driftless {
namespace {

Result<OpenRoad> open_foreign(const Config& config, const SharedFsOptions& options, JobRole role) {
  if (role != JobRole::kRollout) {
    return error(StatusCode::kInvalidArgument,
                 "road.shared_fs.foreign_base: others write road.shared_fs.dir, so a trainer has "
                 "no place there; leave it out, or use another directory");
  }
  OpenRoad road;
  road.receiver = [options, threads = config.receiver.threads] {
    return make_foreign_receiver(posix_file_system(), options, threads);
  };
  return road;
}

// TRL's files are written beside our own; after_publish runs once both are there.
Result<OpenRoad> open_trl(const Road& row, const Config& config, const SharedFsOptions& options,
                          const RoadPlace& place) {
  SharedFsOptions inner = options;
  inner.after_publish.clear();
  DRIFTLESS_ASSIGN_OR_RETURN(OpenRoad road, row.opener->open(RoadOptions(inner), place));
  road.sender = [options, encoding = config.publisher.encoding,
                 files = std::move(road.sender)]() -> Result<std::unique_ptr<SendRoad>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<SendRoad> made, files());
    return make_trl_sender(posix_file_system(), options, encoding, std::move(made));
  };
  return road;
}

}  // namespace

Result<std::vector<PartReceipt>> parts_of_manifest(std::string_view manifest,
                                                   std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest parsed, parse_manifest(manifest, what));
  std::vector<PartReceipt> parts;
  for (const ManifestFile& file : parsed.files) {
    parts.push_back({file.name, file.rank, file.size_bytes, file.hash, file.locator});
  }
  return parts;
}

Result<OpenRoad> open_road(const Road& row, const Config& config, RoadPlace place) {
  place.layout = to_string(config.publisher.layout);
  place.read_parts = parts_of_manifest;
  place.hash = row.hash;
  const auto* const files = config.chosen<SharedFsOptions>();
  if (files != nullptr && !files->foreign_base.empty()) {
    return open_foreign(config, *files, place.role);
  }
  if (files != nullptr && config.trl && place.rank == 0)
    return open_trl(row, config, *files, place);
  if (row.opener == nullptr) {
    return error(StatusCode::kInternal, "the library that was loaded for ", row.name,
                 " does not have this road: install it again");
  }
  return row.opener->open(config.road_options(), place);
}

}  // namespace driftless
