// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/checkpoint_comparison.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "core/compact.h"
#include "core/stopwatch.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {
namespace {

std::string shown_spec(const TensorSpec& spec) {
  return concat(info(spec.dtype).name, " ", spec.shape_string());
}

// Maps a float's bits to a number line on which neighbours differ by one: within one sign, floats
// are ordered like their magnitudes.
std::int64_t place_on_line(const CompactFields& fields, std::uint32_t bits) {
  const auto magnitude = static_cast<std::int64_t>(bits & fields.magnitude_mask());
  return ((bits >> fields.magnitude_bits()) & 1) != 0 ? -magnitude : magnitude;
}

UlpCounts count_ulps(const CompactFields& fields, const DiffPiece& piece) {
  UlpCounts counts;
  const unsigned width = fields.unit_bytes;
  counts.changed = piece.delta.count();
  for (std::size_t k = 0; k < piece.delta.count(); ++k) {
    std::uint32_t before = 0, after = 0;
    std::memcpy(&before, piece.old_values + k * width, width);
    std::memcpy(&after, piece.delta.values + k * width, width);
    const std::int64_t step = place_on_line(fields, after) - place_on_line(fields, before);
    const auto size = static_cast<std::uint64_t>(step < 0 ? -step : step);
    counts.one += size == 1 ? 1 : 0;
    counts.largest = std::max(counts.largest, size);
  }
  return counts;
}

// Lists the differences, and restricts both checkpoints to their common tensors.
Status keep_common(Checkpoint& before, Checkpoint& after, CheckpointComparison& found) {
  std::vector<TensorSpec> common;
  for (const TensorSpec& spec : before.layout().tensors()) {
    const auto there = after.layout().find(spec.name);
    if (there && after.layout()[*there] == spec) {
      common.push_back(spec);
      continue;
    }
    found.layout_differences.push_back(
        {spec.name, shown_spec(spec), there ? shown_spec(after.layout()[*there]) : std::string()});
  }
  for (const TensorSpec& spec : after.layout().tensors()) {
    if (before.layout().find(spec.name)) continue;
    found.layout_differences.push_back({spec.name, "", shown_spec(spec)});
  }
  if (found.layout_differences.empty()) return {};
  if (common.empty()) {
    return error(StatusCode::kWrongLayout, before.path(), " and ", after.path(),
                 " have no tensor in common");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const WeightLayout kept, WeightLayout::make(std::move(common)));
  DRIFTLESS_RETURN_IF_ERROR(before.keep_only(kept));
  return after.keep_only(kept);
}

class Comparer {
 public:
  Comparer(const Checkpoint& before, const Checkpoint& after, const CompareOptions& options,
           CheckpointComparison& found)
      : before_(before), after_(after), options_(options), found_(found) {}

  Status run() {
    const WeightLayout& layout = before_.layout();
    for (const TensorSpec& spec : layout.tensors()) found_.tensors.push_back({spec});
    CostOptions cost;
    cost.threads = options_.threads;
    EncodingCosts costs(layout, cost);
    DRIFTLESS_RETURN_IF_ERROR(diff_checkpoints(
        before_, after_, options_.threads, pass(0),
        [this](const DiffPiece& piece) { return count(piece); },
        [&](const DiffPiece& piece) { return costs.add(piece); }));
    sum();
    if (found_.changed_units == 0) return {};
    return cost_of_whole(costs);
  }

 private:
  // Called on any thread.
  Status count(const DiffPiece& piece) {
    if (piece.delta.offsets.empty()) return {};
    ComparedTensor& tensor = found_.tensors[piece.pair->tensor];
    const std::optional<CompactFields> fields = compact_fields(tensor.spec.dtype);
    const UlpCounts ulps = fields ? count_ulps(*fields, piece) : UlpCounts();
    const std::scoped_lock lock(mutex_);
    tensor.changed_units += piece.delta.count();
    tensor.ulps.add(ulps);
    return {};
  }

  void sum() {
    for (const ComparedTensor& tensor : found_.tensors) {
      const bool changed = tensor.changed_units > 0;
      found_.changed_tensors += changed ? 1 : 0;
      found_.changed_units += tensor.changed_units;
      found_.total_units += tensor.spec.units();
      found_.total_bytes += tensor.spec.size_bytes;
      found_.ulps.add(tensor.ulps);
      const TensorPlace place = place_of_tensor(tensor.spec.name);
      for (DensityGroup* group :
           {&group_named(found_.layers, place.layer), &group_named(found_.kinds, place.kind)}) {
        ++group->tensors;
        group->changed_tensors += changed ? 1 : 0;
        group->changed_units += tensor.changed_units;
        group->total_units += tensor.spec.units();
      }
    }
    std::ranges::sort(found_.layers, natural_less, &DensityGroup::name);
    std::ranges::stable_sort(found_.kinds, std::greater<>(), &DensityGroup::changed_units);
  }

  // Measures the encodings that read whole tensors, one batch after the other.
  Status cost_of_whole(EncodingCosts& costs) {
    std::vector<HfShardWriter::Tensor> all, changed;
    std::vector<std::uint32_t> candidates;
    for (std::uint32_t tensor = 0; tensor < found_.tensors.size(); ++tensor) {
      all.push_back({tensor, before_.tensor(tensor).bytes(), after_.tensor(tensor).bytes()});
      if (found_.tensors[tensor].changed_units == 0) continue;
      changed.push_back(all.back());
      candidates.push_back(tensor);
    }
    DRIFTLESS_RETURN_IF_ERROR(costs.begin_whole(candidates));
    const Progress progress = pass(1);
    std::uint64_t done = 0;
    DRIFTLESS_RETURN_IF_ERROR(each_batch(changed, [&](WholeTensors batch) -> Status {
      DRIFTLESS_RETURN_IF_ERROR(costs.add_whole(batch));
      forget(batch);
      for (const HfShardWriter::Tensor& each : batch) done += each.after.size();
      if (progress) progress(done, found_.total_bytes);
      return {};
    }));
    DRIFTLESS_ASSIGN_OR_RETURN(found_.costs, costs.finish());
    DRIFTLESS_ASSIGN_OR_RETURN(EncodingCost full,
                               cost_of_full(before_.layout(), all, options_.threads,
                                            [this](WholeTensors batch) { forget(batch); }));
    found_.costs.push_back(std::move(full));
    return {};
  }

  void forget(WholeTensors batch) const {
    for (const HfShardWriter::Tensor& each : batch) {
      before_.forget(each.tensor, 0, each.after.size());
      after_.forget(each.tensor, 0, each.after.size());
    }
  }

  // Progress for the first or second reading of all bytes.
  [[nodiscard]] Progress pass(std::uint64_t number) const {
    if (!options_.progress) return {};
    return [this, number](std::uint64_t done, std::uint64_t total) {
      options_.progress(number * total + done, 2 * total);
    };
  }

  const Checkpoint& before_;
  const Checkpoint& after_;
  const CompareOptions& options_;
  CheckpointComparison& found_;
  std::mutex mutex_;
};

}  // namespace

void UlpCounts::add(const UlpCounts& other) {
  changed += other.changed;
  one += other.one;
  largest = std::max(largest, other.largest);
}

std::vector<std::size_t> CheckpointComparison::most_changed() const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [this](std::size_t i) { return tensors[i].changed_units == 0; });
  std::ranges::stable_sort(order, std::greater<>(),
                           [this](std::size_t i) { return tensors[i].changed_units; });
  return order;
}

Result<CheckpointComparison> compare_two(FileSystem& fs, const CompareOptions& options) {
  Stopwatch watch;
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.before));
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.after));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint before, Checkpoint::open(fs, options.before));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint after, Checkpoint::open(fs, options.after));
  CheckpointComparison found;
  found.before = options.before;
  found.after = options.after;
  found.threads = options.threads;
  // Leaves out stored copies of tied tensors. A copy with other bits than its tensor stays, and is
  // listed as a tensor that only one checkpoint has.
  Result<std::vector<std::string>> notes = leave_out_copies(fs, before, after);
  if (notes.ok()) found.notes = std::move(*notes);
  if (!notes.ok() && notes.status().code() != StatusCode::kWrongLayout) return notes.status();
  DRIFTLESS_RETURN_IF_ERROR(keep_common(before, after, found));
  DRIFTLESS_RETURN_IF_ERROR(Comparer(before, after, options, found).run());
  found.files = compare_companions(fs, options.before, options.after);
  found.seconds = watch.lap_ms() / 1000;
  return found;
}

}  // namespace driftless
