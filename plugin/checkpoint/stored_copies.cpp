// SPDX-License-Identifier: Apache-2.0
// Tensors that a checkpoint stores and the run does not publish: the functions of CheckpointPatcher
// for them; and leave_out_copies(), for copies that only one of two compared checkpoints stores.
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/checkpoint/verify.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::uint64_t kMaxConfigBytes = 64 << 20;
// The names that models tie: the last parts of the names of the output's and the embedding's
// weights.
constexpr std::array<std::string_view, 4> kTied = {"lm_head.weight", "embed_tokens.weight",
                                                   "wte.weight", "output.weight"};

bool may_be_tied(std::string_view name) {
  return std::ranges::any_of(kTied, [&](std::string_view tied) {
    return name == tied || (name.ends_with(tied) && name[name.size() - tied.size() - 1] == '.');
  });
}

// Whether the model's configuration says that the embedding is also the output; nothing if it does
// not say.
std::optional<bool> ties_embeddings(FileSystem& fs, const std::string& checkpoint) {
  const Result<std::string> text =
      read_text(fs, join_path(checkpoint, kConfigName), kMaxConfigBytes);
  if (!text.ok()) return std::nullopt;
  const Result<Json> config = parse_json(*text, kConfigName);
  if (!config.ok() || !config->is_object()) return std::nullopt;
  std::optional<bool> found;
  const auto ask = [&found](const Json& json) {
    const Json tie = json.value("tie_word_embeddings", Json());
    if (tie.is_boolean()) found = found.value_or(false) || tie.get<bool>();
  };
  ask(*config);
  if (config->contains("text_config") && (*config)["text_config"].is_object()) {
    ask((*config)["text_config"]);
  }
  return found;
}

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.spec->dtype == b.spec->dtype && a.spec->shape == b.spec->shape &&
         std::memcmp(a.data, b.data, a.spec->size_bytes) == 0;
}

// Leaves the tensors of these names out of `one`.
Status leave_out(Checkpoint& one, const std::set<std::string>& names) {
  std::vector<TensorSpec> kept;
  for (const TensorSpec& spec : one.layout().tensors()) {
    if (!names.contains(spec.name)) kept.push_back(spec);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const WeightLayout layout, WeightLayout::make(std::move(kept)));
  return one.keep_only(layout);
}

// The copies of tied tensors that `one` stores and `other` does not.
Result<std::set<std::string>> copies_beside(FileSystem& fs, const Checkpoint& one,
                                            const WeightLayout& other) {
  std::set<std::string> copies;
  for (std::uint32_t tensor = 0; tensor < one.layout().size(); ++tensor) {
    const std::string& name = one.layout()[tensor].name;
    if (other.find(name) || !may_be_tied(name) || ties_embeddings(fs, one.path()) == false) {
      continue;
    }
    std::string_view unlike;  // a candidate whose bits differ
    bool copy = false;
    for (std::uint32_t source = 0; source < one.layout().size() && !copy; ++source) {
      const std::string& twin = one.layout()[source].name;
      if (source == tensor || !may_be_tied(twin) || !other.find(twin)) continue;
      copy = same_bits(one.tensor(tensor), one.tensor(source));
      unlike = twin;
    }
    if (copy) copies.insert(name);
    if (copy || unlike.empty()) continue;
    return error(StatusCode::kWrongLayout, one.path(), ": tensor '", name,
                 "' is not in the other checkpoint, and cannot be left out, because '", unlike,
                 "', to which it may be tied, has other bits or another shape");
  }
  return copies;
}

}  // namespace

Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& one,
                                                  const WeightLayout& other) {
  std::vector<std::string> notes;
  if (one.layout().signature() == other.signature()) return notes;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::set<std::string> names, copies_beside(fs, one, other));
  if (!names.empty()) DRIFTLESS_RETURN_IF_ERROR(leave_out(one, names));
  for (const std::string& name : names) {
    notes.push_back(concat("tensor '", name, "' was left out: a copy of a tied tensor that only ",
                           one.path(), " stores"));
  }
  return notes;
}

Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& a, Checkpoint& b) {
  const WeightLayout of_a = a.layout();
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::string> notes, leave_out_copies(fs, a, b.layout()));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> more, leave_out_copies(fs, b, of_a));
  notes.insert(notes.end(), more.begin(), more.end());
  return notes;
}

void mark_copies(FileSystem& fs, Checkpoint& checkpoint) {
  // A configuration leaves the key out if it has the model's default: then the bits decide.
  if (ties_embeddings(fs, checkpoint.path()) == false) return;
  for (std::size_t i = 0; i < checkpoint.others().size(); ++i) {
    const OtherTensor& other = checkpoint.others()[i];
    if (!may_be_tied(other.spec.name)) continue;
    for (std::uint32_t tensor = 0; tensor < checkpoint.layout().size(); ++tensor) {
      if (!may_be_tied(checkpoint.layout()[tensor].name)) continue;
      if (same_bits(checkpoint.view(other), checkpoint.tensor(tensor))) {
        checkpoint.mark_copy(i, tensor);
      }
    }
  }
}

Status CheckpointPatcher::adopt_signature(const Hash128& published) {
  const WeightLayout& stored = checkpoint_->layout();
  if (stored.signature() == published || !state_.layout.is_zero() ||
      !checkpoint_->others().empty()) {
    return {};
  }
  std::vector<TensorSpec> tied;
  for (const TensorSpec& spec : stored.tensors()) {
    if (may_be_tied(spec.name)) tied.push_back(spec);
  }
  for (const TensorSpec& left : tied) {
    std::vector<TensorSpec> kept(stored.tensors().begin(), stored.tensors().end());
    std::erase(kept, left);
    DRIFTLESS_ASSIGN_OR_RETURN(const WeightLayout layout, WeightLayout::make(std::move(kept)));
    if (layout.signature() != published) continue;
    DRIFTLESS_RETURN_IF_ERROR(adopt_layout(layout));
    if (state_.copies.contains(left.name)) return {};
    return error(StatusCode::kWrongLayout, path_, ": stores tensor '", left.name,
                 "', which the version does not have and which is no copy of a tied tensor "
                 "(by tie_word_embeddings in config.json, and by its bits), so the version would "
                 "not update it; use the checkpoint that this run started from");
  }
  return {};
}

Status CheckpointPatcher::adopt_layout(const WeightLayout& published) {
  const WeightLayout& stored = checkpoint_->layout();
  if (stored.signature() == published.signature()) return {};
  if (!state_.layout.is_zero() || !checkpoint_->others().empty()) {
    return stored.check_same(published, concat(path_, ", as it was patched so far,"), "the run");
  }
  DRIFTLESS_RETURN_IF_ERROR(checkpoint_->keep_only(published));
  mark_copies(*fs_, *checkpoint_);
  for (const OtherTensor& other : checkpoint_->others()) {
    if (state_.digest) *state_.digest -= digest_of(other);
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
    return error(
        StatusCode::kMismatch, path_, ": tensor '", other.spec.name, "' is a stored copy of '",
        checkpoint_->layout()[*other.copy_of].name,
        "' and differs from it: another process wrote into one of them; a full version repairs it");
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
