// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/union_needs.h"

#include <algorithm>

namespace driftless {
namespace {

TensorNeed least_around(const std::set<TensorNeed>& needs) {
  if (needs.empty()) return {TensorNeed::Kind::kNothing};
  TensorNeed all = *needs.begin();
  std::uint64_t end = all.begin + all.size;
  for (const TensorNeed& need : needs) {
    if (need.kind != TensorNeed::Kind::kSlice || need.dim != all.dim) return {};
    all.begin = std::min(all.begin, need.begin);
    end = std::max(end, need.begin + need.size);
  }
  all.size = end - all.begin;
  return all;
}

}  // namespace

bool UnionNeeds::add(const WeightLayout& layout, const ReceiverReport& report) {
  WorkerNeeds& worker = workers_[report.id];
  if (!worker.text.empty() && worker.text == report.needs) return false;
  worker.text = report.needs;
  Result<ReceiverNeeds> needs = parse_needs(report.needs, report.id);
  if (needs.ok()) needs->bytes_per_s = needs->units_per_s = 0;  // do not compare speeds
  const bool news = !worker.needs || !needs.ok() || !(*worker.needs == *needs);
  worker.needs = needs.ok() ? std::optional(*needs) : std::nullopt;
  if (!news) return false;
  old_values_ = old_values_ && needs.ok() && needs->old_values;
  for (const EncodingInfo& each : all_encodings()) {
    if (!needs.ok() ||
        std::ranges::find(needs->encodings, each.encoding) != needs->encodings.end()) {
      continue;
    }
    unread_.insert(each.encoding);
  }
  sliced_ = sliced_ || (needs.ok() && std::ranges::any_of(needs->tensors, [](const auto& need) {
                          return need.kind == TensorNeed::Kind::kSlice;
                        }));
  if (!needs.ok() || !needs->ranges || needs->layout != layout.signature() ||
      needs->tensors.size() != layout.size()) {
    everything_ = true;
  }
  if (everything_) return true;
  of_tensor_.resize(layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const TensorNeed& need = needs->tensors[i];
    if (need.kind != TensorNeed::Kind::kNothing) of_tensor_[i].insert(need);
  }
  return true;
}

bool UnionNeeds::has(std::uint32_t tensor, const TensorBlock* block) const {
  if (everything_ || tensor >= of_tensor_.size()) return true;
  return std::ranges::any_of(of_tensor_[tensor], [&](const TensorNeed& need) {
    if (need.kind == TensorNeed::Kind::kAll || block == nullptr) return true;
    if (need.dim >= block->box.sizes.size()) return true;
    const std::uint64_t begin = block->box.offsets[need.dim];
    return need.begin < begin + block->box.sizes[need.dim] &&
           (begin <= need.begin || begin - need.begin < need.size);
  });
}

bool UnionNeeds::old_values() const {
  const bool alike =
      std::ranges::all_of(of_tensor_, [](const auto& each) { return each.size() < 2; });
  return old_values_ && !unread_.contains(Encoding::kCompact) && (everything_ ? !sliced_ : alike);
}

std::string UnionNeeds::text(const WeightLayout& layout) const {
  ReceiverNeeds needs;
  for (const EncodingInfo& each : all_encodings()) {
    if (!unread_.contains(each.encoding)) needs.encodings.push_back(each.encoding);
  }
  needs.old_values = old_values();
  needs.ranges = true;
  needs.run = run_;
  needs.layout = layout.signature();
  needs.bytes_per_s = bytes_per_s_;
  needs.units_per_s = units_per_s_;
  if (!everything_) {
    for (const std::set<TensorNeed>& each : of_tensor_) needs.tensors.push_back(least_around(each));
  }
  Result<std::string> text = needs_to_text(needs, kMaxNeedsBytes);
  if (!text.ok()) return {};
  const Result<ReceiverNeeds> parsed = parse_needs(*text, "the agent");
  if (parsed.ok() && parsed->tensors == needs.tensors) return *text;
  needs.old_values = false;  // the text cannot hold the slices, so blocks are not cut to them
  text = needs_to_text(needs, kMaxNeedsBytes);
  return text.ok() ? *text : std::string();
}

}  // namespace driftless
