// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/opener.h"

namespace driftless {
namespace shared_fs {
namespace {

constexpr std::uint64_t kMaxEndBytes = 4096;

std::string end_path(const RoadOptions& options) {
  return join_path(options_in<SharedFsOptions>(options).dir, "closed.json");
}

Result<OpenRoad> open(const RoadOptions& given, const RoadPlace& place) {
  const auto& options = options_in<SharedFsOptions>(given);
  // In other layouts, other software expects the names and number of the files.
  const bool frames = place.layout == "frames";
  OpenRoad road;
  road.sender = [options, place, frames] {
    FileSystem& fs = posix_file_system();
    const auto pack = frames ? pack_of(options, place.rank, place.trainers) : std::nullopt;
    return make_shared_fs_sender(fs, options, place.rank, place.trainers,
                                 pack ? make_part_packs_sink(fs, *pack) : nullptr);
  };
  road.receiver = [options] { return make_shared_fs_receiver(posix_file_system(), options); };
  return road;
}

Result<std::unique_ptr<ReceiveRoad>> history(const RoadOptions& options) {
  return make_shared_fs_receiver(posix_file_system(), options_in<SharedFsOptions>(options));
}

}  // namespace

std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                             const Deadline& deadline) {
  return examine_shared_fs(posix_file_system(), options_in<SharedFsOptions>(options), space_bytes,
                           deadline);
}

Status withdraw_end(const RoadOptions& options) {
  const Status removed = posix_file_system().remove_file(end_path(options));
  return removed.code() == StatusCode::kNotFound ? Status() : removed;
}

Status publish_end(const RoadOptions& options, std::string_view text) {
  return replace_text(posix_file_system(), end_path(options), concat(text, "\n"));
}

Result<std::optional<std::string>> fetch_end(const RoadOptions& options) {
  Result<std::string> read = read_text(posix_file_system(), end_path(options), kMaxEndBytes);
  if (read.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  if (!read.ok()) return read.status();
  return std::optional<std::string>(std::move(*read));
}

}  // namespace shared_fs

constinit const RoadOpener kSharedFsOpener{.open = shared_fs::open,
                                           .history = shared_fs::history,
                                           .withdraw_end = shared_fs::withdraw_end,
                                           .publish_end = shared_fs::publish_end,
                                           .fetch_end = shared_fs::fetch_end,
                                           .signs = shared_fs::signs,
                                           .examine = shared_fs::examine};

}  // namespace driftless
