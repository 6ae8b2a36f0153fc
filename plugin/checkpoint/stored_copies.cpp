// SPDX-License-Identifier: Apache-2.0
// CheckpointPatcher: what is stored in a checkpoint, and not published by the run.
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::uint64_t kMaxConfigBytes = 64 << 20;
// The names that models tie: the last parts of the output's and of the embedding's weights.
constexpr std::array<std::string_view, 4> kTied = {"lm_head.weight", "embed_tokens.weight",
                                                   "wte.weight", "output.weight"};

bool may_be_tied(std::string_view name) {
  return std::ranges::any_of(kTied, [&](std::string_view tied) {
    return name == tied || (name.ends_with(tied) && name[name.size() - tied.size() - 1] == '.');
  });
}

// Whether the model's configuration says that the embedding is used for the output, too.
bool ties_embeddings(FileSystem& fs, const std::string& checkpoint) {
  const Result<std::string> text =
      read_text(fs, join_path(checkpoint, kConfigName), kMaxConfigBytes);
  if (!text.ok()) return false;
  const Result<Json> config = parse_json(*text, kConfigName);
  if (!config.ok() || !config->is_object()) return false;
  const auto says = [](const Json& json) {
    return json.value("tie_word_embeddings", Json()) == true;
  };
  return says(*config) || (config->contains("text_config") &&
                           (*config)["text_config"].is_object() && says((*config)["text_config"]));
}

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.spec->dtype == b.spec->dtype && a.spec->shape == b.spec->shape &&
         std::memcmp(a.data, b.data, a.spec->size_bytes) == 0;
}

}  // namespace

Status CheckpointPatcher::adopt_layout(const WeightLayout& published) {
  const WeightLayout& own = checkpoint_->layout();
  if (own.signature() == published.signature()) return {};
  if (!state_.layout.is_zero() || !checkpoint_->others().empty()) {
    return own.check_same(published, concat(path_, ", as it was patched so far,"), "the run");
  }
  DRIFTLESS_RETURN_IF_ERROR(checkpoint_->keep_only(published));
  const bool tied = ties_embeddings(*fs_, path_);
  Digest left;
  for (std::size_t i = 0; i < checkpoint_->others().size(); ++i) {
    const OtherTensor& other = checkpoint_->others()[i];
    const TensorView view = checkpoint_->view(other);
    if (state_.digest) left += digest_of(other);
    if (!tied || !may_be_tied(other.spec.name)) continue;
    for (std::uint32_t tensor = 0; tensor < checkpoint_->layout().size(); ++tensor) {
      if (!may_be_tied(checkpoint_->layout()[tensor].name)) continue;
      if (same_bits(view, checkpoint_->tensor(tensor))) checkpoint_->mark_copy(i, tensor);
    }
  }
  if (state_.digest) *state_.digest -= left;
  for (const OtherTensor& other : checkpoint_->others()) {
    if (other.copy_of) {
      state_.copies[other.spec.name] = checkpoint_->layout()[*other.copy_of].name;
    } else {
      state_.left_alone.push_back(other.spec.name);
    }
  }
  return {};
}

std::vector<LeftTensor> CheckpointPatcher::left_tensors() const {
  std::vector<LeftTensor> left;
  for (const OtherTensor& other : checkpoint_->others()) {
    if (!other.copy_of) left.push_back({other.spec.name, digest_of(other)});
  }
  return left;
}

Digest CheckpointPatcher::digest_of(const OtherTensor& other) const {
  const DigestTensorKey key = digest_tensor_key(other.spec.name);
  const TensorBytes bytes{{0, checkpoint_->view(other).bytes()}, &key};
  return digest_on_host(std::span(&bytes, 1), options_.threads);
}

Status leave_others(const CheckpointState& state, Checkpoint& checkpoint) {
  if (!checkpoint.others().empty() || (state.left_alone.empty() && state.copies.empty())) {
    return {};
  }
  std::vector<TensorSpec> kept;
  for (const TensorSpec& spec : checkpoint.layout().tensors()) {
    const bool left = std::ranges::find(state.left_alone, spec.name) != state.left_alone.end();
    if (!left && !state.copies.contains(spec.name)) kept.push_back(spec);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const WeightLayout layout, WeightLayout::make(std::move(kept)));
  DRIFTLESS_RETURN_IF_ERROR(checkpoint.keep_only(layout));
  for (std::size_t i = 0; i < checkpoint.others().size(); ++i) {
    const TensorSpec& copy = checkpoint.others()[i].spec;
    const auto source = state.copies.find(copy.name);
    if (source == state.copies.end()) continue;
    const std::optional<std::uint32_t> tensor = layout.find(source->second);
    if (!tensor || layout[*tensor].dtype != copy.dtype || layout[*tensor].shape != copy.shape) {
      return error(StatusCode::kCorrupt, checkpoint.path(), ": its state says that tensor '",
                   copy.name, "' is a copy of '", source->second,
                   "', which it cannot be; restore the base "
                   "checkpoint of this run (and remove its .weight_sync directory)");
    }
    checkpoint.mark_copy(i, *tensor);
  }
  return {};
}

Status CheckpointPatcher::check_copies() const {
  for (const OtherTensor& other : checkpoint_->others()) {
    if (!other.copy_of || same_bits(checkpoint_->view(other), checkpoint_->tensor(*other.copy_of)))
      continue;
    return error(StatusCode::kMismatch, path_, ": tensor '", other.spec.name,
                 "' is a stored copy of '", checkpoint_->layout()[*other.copy_of].name,
                 "' and differs from it: somebody else wrote into one of them; a full version "
                 "mends it");
  }
  return {};
}

Status CheckpointPatcher::write_copies() {
  for (const OtherTensor& other : checkpoint_->others()) {
    if (!other.copy_of) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                               fs_->open(checkpoint_->files()[other.at.file].file().path()));
    DRIFTLESS_RETURN_IF_ERROR(
        file->pwrite(other.at.file_offset, checkpoint_->tensor(*other.copy_of).bytes()));
    DRIFTLESS_RETURN_IF_ERROR(file->sync());
  }
  copies_differ_ = false;
  return {};
}

}  // namespace driftless
