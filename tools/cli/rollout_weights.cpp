// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/rollout_weights.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "formats/checkpoint.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/checkpoint/verify.h"
#include "plugin/job/devices.h"
#include "plugin/targets/weight_memory.h"
#include "tools/cli/job.h"

namespace driftless::cli {
namespace {

constexpr std::uint64_t kShardBytes = std::uint64_t{2} << 30;

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

using Use = RolloutWeights::Use;

using Tensor = RolloutWeights::Tensor;

Status visit_held(const MappedTarget& held, std::size_t tensor, const Use& use) {
  std::vector<std::byte> piece;
  const std::uint64_t size = (*held.layout())[tensor].size_bytes;
  std::uint64_t at = 0;
  do {  // a tensor without bytes is visited, too
    piece.resize(std::min(kPieceBytes, size - at));
    DRIFTLESS_RETURN_IF_ERROR(held.read(tensor, at, piece));
    DRIFTLESS_RETURN_IF_ERROR(use(piece));
    at += piece.size();
  } while (at < size);
  return {};
}

Digest digest_of(const TensorView& tensor, unsigned threads) {
  const DigestTensorKey key = digest_tensor_key(tensor.spec->name);
  const TensorBytes bytes{{0, tensor.bytes()}, &key};
  return digest_on_host(std::span(&bytes, 1), std::max(1U, threads));
}

// Adds the tensors that the base has beside the run's: a tied tensor's copy with its present bits,
// and tensors left as they are, which must still have the bits that were loaded.
Status add_others(const MappedTarget& held, const std::string& path, unsigned threads,
                  std::vector<Tensor>& tensors) {
  if (held.left_tensors().empty()) return {};
  FileSystem& fs = posix_file_system();
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(fs, path));
  const auto base = std::make_shared<Checkpoint>(std::move(opened));
  DRIFTLESS_RETURN_IF_ERROR(base->keep_only(*held.layout()));
  mark_copies(fs, *base);
  for (const LeftTensor& left : held.left_tensors()) {
    const auto other = std::ranges::lower_bound(
        base->others(), left.name, {},
        [](const OtherTensor& each) -> std::string_view { return each.spec.name; });
    const bool there = other != base->others().end() && other->spec.name == left.name;
    if (!there || (left.digest && digest_of(base->view(*other), threads) != *left.digest)) {
      return error(StatusCode::kMismatch, "--save: ", path, ": tensor '", left.name,
                   "', which the run does not publish, is not what it was when the rollout began; ",
                   "restore the base");
    }
    if (other->copy_of) {
      tensors.push_back({other->spec, [&held, source = *other->copy_of](const Use& use) {
                           return visit_held(held, source, use);
                         }});
    } else {
      tensors.push_back({other->spec, [base, at = &*other](const Use& use) {
                           return use(base->view(*at).bytes());
                         }});
    }
  }
  return {};
}

RolloutWeights in_memory(std::unique_ptr<MappedTarget> target, const std::string& base,
                         unsigned threads) {
  const auto tensors = [held = target.get(), base, threads]() -> Result<std::vector<Tensor>> {
    std::vector<Tensor> all;
    for (std::size_t tensor = 0; tensor < held->layout()->size(); ++tensor) {
      all.push_back({(*held->layout())[tensor],
                     [held, tensor](const Use& use) { return visit_held(*held, tensor, use); }});
    }
    if (!base.empty()) DRIFTLESS_RETURN_IF_ERROR(add_others(*held, base, threads, all));
    return all;
  };
  return {std::move(target), tensors, base};
}

// The checkpoint's own files have all tensors.
RolloutWeights in_checkpoint(const std::string& path, std::unique_ptr<WeightTarget> target) {
  const auto tensors = [path]() -> Result<std::vector<Tensor>> {
    DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(posix_file_system(), path));
    const auto checkpoint = std::make_shared<Checkpoint>(std::move(opened));
    std::vector<Tensor> all;
    for (std::size_t tensor = 0; tensor < checkpoint->layout().size(); ++tensor) {
      all.push_back({checkpoint->layout()[tensor], [checkpoint, tensor](const Use& use) {
                       return use(checkpoint->tensor(tensor).bytes());
                     }});
    }
    return all;
  };
  return {std::move(target), tensors, path};
}

// Copies configuration and tokenizer. Returns the names of files that were left out.
Result<std::vector<std::string>> copy_companions(const std::string& from, const std::string& to) {
  FileSystem& fs = posix_file_system();
  if (from.empty() || !exists(fs, join_path(from, "."))) return std::vector<std::string>();
  DRIFTLESS_ASSIGN_OR_RETURN(const Companions found, open_companions(fs, from));
  for (const auto& [name, file] : found.files) {
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    DRIFTLESS_RETURN_IF_ERROR(write_text(fs, join_path(to, name), text));
  }
  return found.left_out;
}

}  // namespace

Result<RolloutWeights> open_weights(const Config& config, unsigned rank, const std::string& base) {
  FileSystem& fs = posix_file_system();
  // Frames on the device suit any target of a program with weights of its own. This command's
  // weights take them only if the weights are on the device, too.
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
    return in_memory(std::move(target), base, config.receiver.threads);
  }
  const std::string path = filled_in(config.checkpoint_dir, "rollout", rank);
  DRIFTLESS_RETURN_IF_ERROR(copy_base(base, path));
  DRIFTLESS_ASSIGN_OR_RETURN(auto target,
                             make_checkpoint_target(fs, path, config.receiver.threads));
  return in_checkpoint(path, std::move(target));
}

Result<std::vector<std::string>> save_weights(const RolloutWeights& weights,
                                              const std::string& directory, unsigned rank) {
  FileSystem& fs = posix_file_system();
  if (weights.target->layout() == nullptr || !weights.target->state().valid) {
    return error(StatusCode::kIncomplete, "--save: no version came, so there is nothing to save");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Tensor> tensors, weights.tensors());
  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : tensors) specs.push_back(tensor.spec);
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rollout_%02u", rank);
  const std::string hidden = join_path(directory, std::string(".") + name.data());
  DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, directory));
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(hidden));
  const ShardPlan plan = ShardPlan::make(std::move(specs), kShardBytes);
  CheckpointWriter writer(fs, hidden, plan);
  for (const Tensor& tensor : tensors) {
    DRIFTLESS_RETURN_IF_ERROR(
        tensor.visit([&](std::span<const std::byte> bytes) { return writer.append(bytes); }));
  }
  DRIFTLESS_RETURN_IF_ERROR(writer.finish());
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::string> left_out,
                             copy_companions(weights.directory, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(hidden, join_path(directory, name.data())));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(directory));
  return left_out;
}

}  // namespace driftless::cli
