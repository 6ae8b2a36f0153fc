// SPDX-License-Identifier: Apache-2.0
// The roads that need no further library, for a process of a job.
#include "plugin/interchange/foreign_directory.h"
#include "plugin/interchange/trl_writer.h"
#include "plugin/job/road_openers.h"

namespace driftless {
namespace {

// What the trainer leaves for rollouts that were started by themselves.
constexpr std::string_view kEndName = "closed.json";
constexpr std::uint64_t kMaxEndBytes = 4096;

std::string end_path(const Config& config) { return join_path(config.shared_fs.dir, kEndName); }

}  // namespace

Result<OpenRoad> open_host_shm_road(const Config& config, const RoadPlace& place) {
  if (place.role == JobRole::kTrainer && place.trainers > 1) {
    return error(StatusCode::kInvalidArgument, "road.kind: host_shm has one sending process, and ",
                 place.trainers, " trainers publish: use mpi_rma, nccl or shared_fs");
  }
  OpenRoad road;
  road.sender = [options = config.host_shm] { return make_host_shm_sender(options); };
  road.receiver = [options = config.host_shm] { return make_host_shm_receiver(options); };
  return road;
}

Result<OpenRoad> open_shared_fs_road(const Config& config, const RoadPlace& place) {
  OpenRoad road;
  if (!config.shared_fs.foreign_base.empty()) {
    if (place.role != JobRole::kRollout) {
      return error(StatusCode::kInvalidArgument,
                   "road.foreign_base: others write road.dir, so a trainer has no place there; "
                   "leave it out, or use another directory");
    }
    road.receiver = [options = config.shared_fs, threads = config.receiver.threads] {
      return make_foreign_receiver(posix_file_system(), options, threads);
    };
    return road;
  }
  // In other layouts the files' names and number are for the readers of others.
  const bool frames = config.publisher.layout == DirectoryLayout::kFrames;
  if (config.trl && place.rank == 0) {
    road.sender = [options = config.shared_fs, encoding = config.publisher.encoding,
                   place]() -> Result<std::unique_ptr<SendRoad>> {
      FileSystem& fs = posix_file_system();
      SharedFsOptions inner = options;
      inner.after_publish.clear();
      DRIFTLESS_ASSIGN_OR_RETURN(
          std::unique_ptr<SendRoad> files,
          make_shared_fs_sender(fs, inner, place.rank, place.trainers, nullptr));
      return make_trl_sender(fs, options, encoding, std::move(files));
    };
  } else {
    road.sender = [options = config.shared_fs, place, frames] {
      FileSystem& fs = posix_file_system();
      const auto pack = frames ? pack_of(options, place.rank, place.trainers) : std::nullopt;
      return make_shared_fs_sender(fs, options, place.rank, place.trainers,
                                   pack ? make_part_packs_sink(fs, *pack) : nullptr);
    };
  }
  road.receiver = [options = config.shared_fs] {
    return make_shared_fs_receiver(posix_file_system(), options);
  };
  return road;
}

Result<std::unique_ptr<ReceiveRoad>> shared_fs_history(const Config& config) {
  return make_shared_fs_receiver(posix_file_system(), config.shared_fs);
}

Status withdraw_shared_fs_end(const Config& config) {
  const Status removed = posix_file_system().remove_file(end_path(config));
  return removed.code() == StatusCode::kNotFound ? Status() : removed;
}

Status tell_shared_fs_end(const Config& config, std::string_view text) {
  return replace_text(posix_file_system(), end_path(config), concat(text, "\n"));
}

Result<std::optional<std::string>> hear_shared_fs_end(const Config& config) {
  Result<std::string> read = read_text(posix_file_system(), end_path(config), kMaxEndBytes);
  if (read.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  if (!read.ok()) return read.status();
  return std::optional<std::string>(std::move(*read));
}

}  // namespace driftless
