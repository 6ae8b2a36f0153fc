// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/rollout_weights.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/new_directory.h"
#include "formats/checkpoint.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/job/devices.h"
#include "tools/cli/job.h"

namespace driftless::cli {
namespace {

namespace stdfs = std::filesystem;
constexpr std::uint64_t kShardBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kMaxModelConfigBytes = std::uint64_t{16} << 20;

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

using Use = RolloutWeights::Use;

RolloutWeights in_memory(std::unique_ptr<MappedTarget> target) {
  const auto visit = [held = target.get()](const Use& use) -> Status {
    std::vector<std::byte> piece;
    for (std::size_t tensor = 0; tensor < held->layout()->size(); ++tensor) {
      const std::uint64_t size = (*held->layout())[tensor].size_bytes;
      std::uint64_t at = 0;
      do {  // a tensor without bytes is visited, too
        piece.resize(std::min(kPieceBytes, size - at));
        DRIFTLESS_RETURN_IF_ERROR(held->read(tensor, at, piece));
        DRIFTLESS_RETURN_IF_ERROR(use(piece));
        at += piece.size();
      } while (at < size);
    }
    return {};
  };
  return {std::move(target), visit};
}

RolloutWeights in_checkpoint(const std::string& path, std::unique_ptr<WeightTarget> target) {
  const auto visit = [path](const Use& use) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                               Checkpoint::open(posix_file_system(), path));
    for (std::size_t tensor = 0; tensor < checkpoint.layout().size(); ++tensor) {
      DRIFTLESS_RETURN_IF_ERROR(use(checkpoint.tensor(tensor).bytes()));
    }
    return {};
  };
  return {std::move(target), visit};
}

// Copies into a hidden sibling, then renames: a copy that was cut is not taken for a checkpoint.
Status copy_base(const std::string& base, const std::string& path) {
  FileSystem& fs = posix_file_system();
  if (base.empty()) {
    return error(StatusCode::kNotFound, "receiver.checkpoint_dir: ", path,
                 " is not there; --base CKPT would be copied there");
  }
  const stdfs::path target = stdfs::path(path).lexically_normal();
  const std::string hidden =
      (target.parent_path() / concat(".", target.filename().string())).string();
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  // As the directory itself, which the copy makes: never in a place that is not there.
  DRIFTLESS_RETURN_IF_ERROR(make_last_directory(fs, hidden).status());
  std::error_code failed;
  stdfs::copy(base, hidden, stdfs::copy_options::recursive, failed);
  if (failed) return errno_status(failed.value(), concat("copying ", base, " to ", path));
  return fs.rename_new(hidden, target.string());
}

Status copy_model_config(const std::string& base, const std::string& directory) {
  FileSystem& fs = posix_file_system();
  const std::string from = join_path(base, "config.json");
  if (base.empty() || !exists(fs, from)) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, from, kMaxModelConfigBytes));
  return write_text(fs, join_path(directory, "config.json"), text);
}

}  // namespace

Result<RolloutWeights> open_weights(const Config& config, unsigned rank, const std::string& base) {
  FileSystem& fs = posix_file_system();
  // Others, who bring weights of their own, may land on the device whatever the target.
  if (config.target != TargetKind::kDevice && config.frames_on_device()) {
    return error(StatusCode::kInvalidArgument,
                 "road.nccl.arrival: device needs receiver.target: device: other weights are "
                 "patched from host memory");
  }
  const auto start = base.empty() ? std::nullopt : std::optional(base);
  if (config.target != TargetKind::kCheckpoint) {
    std::shared_ptr<WeightMemory> memory;
    if (config.target == TargetKind::kDevice) {
      DRIFTLESS_ASSIGN_OR_RETURN(memory, make_device_memory(config.gpu.device));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(
        auto target, make_owned_target(fs, start, config.receiver.threads, std::move(memory)));
    return in_memory(std::move(target));
  }
  const std::string path = filled_in(config.checkpoint_dir, "rollout", rank);
  if (!exists(fs, path)) DRIFTLESS_RETURN_IF_ERROR(copy_base(base, path));
  DRIFTLESS_ASSIGN_OR_RETURN(auto target,
                             make_checkpoint_target(fs, path, config.receiver.threads));
  return in_checkpoint(path, std::move(target));
}

Status save_weights(const RolloutWeights& weights, const std::string& directory, unsigned rank,
                    const std::string& base) {
  FileSystem& fs = posix_file_system();
  const WeightLayout* layout = weights.target->layout();
  if (layout == nullptr || !weights.target->state().valid) {
    return error(StatusCode::kIncomplete, "--save: no version came, so there is nothing to save");
  }
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rollout_%02u", rank);
  const std::string hidden = join_path(directory, std::string(".") + name.data());
  DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, directory));
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(hidden));
  const ShardPlan plan =
      ShardPlan::make({layout->tensors().begin(), layout->tensors().end()}, kShardBytes);
  CheckpointWriter writer(fs, hidden, plan);
  DRIFTLESS_RETURN_IF_ERROR(
      weights.visit([&](std::span<const std::byte> bytes) { return writer.append(bytes); }));
  DRIFTLESS_RETURN_IF_ERROR(writer.finish());
  DRIFTLESS_RETURN_IF_ERROR(copy_model_config(base, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(hidden, join_path(directory, name.data())));
  return fs.sync_directory(directory);
}

}  // namespace driftless::cli
