// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/changed_tensors.h"

#include "formats/checkpoint.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {
namespace {

constexpr std::uint64_t kShardBytes = std::uint64_t{2} << 30;

}  // namespace

Result<bool> write_changed_tensors(FileSystem& fs, const std::string& checkpoint,
                                   const std::set<std::uint32_t>& changed,
                                   const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint weights, Checkpoint::open(fs, checkpoint));
  // `changed` has the run's tensor numbers, and the checkpoint may have other tensors, too.
  DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, checkpoint));
  DRIFTLESS_RETURN_IF_ERROR(leave_others(state, weights));
  if (changed.size() >= weights.layout().size()) return false;
  std::vector<TensorView> views;
  for (const std::uint32_t tensor : changed) views.push_back(weights.tensor(tensor));
  for (const OtherTensor& other : weights.others()) {
    if (other.copy_of && changed.contains(*other.copy_of)) views.push_back(weights.view(other));
  }
  std::vector<TensorSpec> tensors;
  for (const TensorView& view : views) tensors.push_back(*view.spec);
  const std::string hidden = directory + ".tmp";
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, hidden));
  const ShardPlan plan = ShardPlan::make(std::move(tensors), kShardBytes);
  CheckpointWriter writer(fs, hidden, plan);
  for (const TensorView& view : views) {
    DRIFTLESS_RETURN_IF_ERROR(writer.append({view.data, view.spec->size_bytes}));
  }
  DRIFTLESS_RETURN_IF_ERROR(writer.finish());
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(hidden, directory));
  return true;
}

Status check_same_shapes(FileSystem& fs, const std::string& path, const WeightLayout& layout) {
  const Result<Checkpoint> model = Checkpoint::open(fs, path);
  if (!model.ok()) {
    return model.status().with_context(
        "the server's shapes must be known, because an update with other shapes ends the server; "
        "start it from a local checkpoint directory");
  }
  for (const TensorSpec& tensor : layout.tensors()) {
    const auto index = model->layout().find(tensor.name);
    if (!index) {
      return error(StatusCode::kWrongLayout, path, ": has no tensor '", tensor.name,
                   "', which the run has");
    }
    const TensorSpec& found = model->layout()[*index];
    if (found.shape != tensor.shape) {
      return error(StatusCode::kWrongLayout, path, ": tensor '", tensor.name, "' is ",
                   found.shape_string(), ", the run's ", tensor.shape_string());
    }
  }
  return {};
}

}  // namespace driftless
