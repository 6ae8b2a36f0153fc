// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/receiver_planner.h"

#include <algorithm>
#include <set>

namespace driftless {
namespace {

// A smaller slice is not worth a table row and a request.
constexpr std::uint64_t kLeastSliceBytes = std::uint64_t{16} << 10;

// Ok if all blocks of the tensor can be cut like this, and readers accept the resulting blocks.
Status check_cut(const TensorSpec& tensor, std::span<const TensorBox> boxes, const BlockCut& cut) {
  std::size_t blocks = 0;
  for (const TensorBox& box : boxes) {
    DRIFTLESS_ASSIGN_OR_RETURN(const OwnedTensor owned,
                               OwnedTensor::make(cut.tensor, tensor, box, &cut));
    blocks += std::max<std::size_t>(owned.parts().size(), 1);
  }
  if (blocks <= kMaxBlocksOfTensor) return {};
  return error(StatusCode::kInvalidArgument, "tensor '", tensor.name, "' would be cut into ",
               blocks, " blocks, at most ", kMaxBlocksOfTensor, " are allowed");
}

// `parts` parts of equal size; the last ones may be smaller.
std::vector<std::uint64_t> equal_parts(std::uint64_t length, std::uint32_t parts) {
  std::vector<std::uint64_t> points;
  if (parts < 2) return points;
  const std::uint64_t step = std::max<std::uint64_t>((length + parts - 1) / parts, 1);
  for (std::uint64_t at = step; at < length; at += step) points.push_back(at);
  return points;
}

bool is_slice(const TensorSpec& tensor, const TensorNeed& need) {
  if (need.kind != TensorNeed::Kind::kSlice || need.dim >= tensor.shape.size()) return false;
  const std::uint64_t length = tensor.shape[need.dim];
  if (need.begin >= length || need.size >= length || need.size > length - need.begin) return false;
  return tensor.size_bytes / length * need.size >= kLeastSliceBytes;
}

// The needs of a receiver that has not announced any: every encoding but `compact`.
ReceiverNeeds silent_needs() {
  ReceiverNeeds needs;
  for (const EncodingInfo& each : all_encodings()) {
    if (each.encoding != Encoding::kCompact) needs.encodings.push_back(each.encoding);
  }
  return needs;
}

}  // namespace

Result<std::vector<BlockCut>> ReceiverPlanner::open(std::span<const TensorSpec> tensors,
                                                    std::vector<std::vector<TensorBox>> boxes) {
  boxes_ = std::move(boxes);
  if (options_.cuts.empty()) return std::vector<BlockCut>();
  if (!takes_blocks()) {
    return error(StatusCode::kUnsupported, "cuts are for frames, but layout ",
                 to_string(options_.layout),
                 " has whole tensors; leave the cuts out, or publish frames");
  }
  std::map<std::uint32_t, BlockCut> cuts;
  for (const TensorCut& wanted : options_.cuts) {
    const auto found = std::ranges::lower_bound(tensors, wanted.tensor, {}, &TensorSpec::name);
    if (found == tensors.end() || found->name != wanted.tensor) {
      return error(StatusCode::kInvalidArgument, "a cut of tensor '", wanted.tensor,
                   "', which no publisher rank offers");
    }
    if (wanted.dim >= found->shape.size()) {
      return error(StatusCode::kInvalidArgument, "tensor '", found->name, "' has ",
                   found->shape.size(), " dimensions, and cannot be cut along dimension ",
                   wanted.dim);
    }
    const auto tensor = static_cast<std::uint32_t>(found - tensors.begin());
    BlockCut cut{tensor, wanted.dim, equal_parts(found->shape[wanted.dim], wanted.parts)};
    DRIFTLESS_RETURN_IF_ERROR(check_cut(*found, boxes_[tensor], cut));
    if (!cuts.emplace(tensor, std::move(cut)).second) {
      return error(StatusCode::kInvalidArgument, "tensor '", wanted.tensor, "' has two cuts");
    }
  }
  for (auto& [tensor, cut] : cuts) option_cuts_.push_back(std::move(cut));
  return option_cuts_;
}

std::vector<std::uint32_t> ReceiverPlanner::plain_for(std::span<const BlockCut> cuts) const {
  std::set<std::uint32_t> plain;
  const auto is_cut = [&](std::uint32_t tensor, std::uint32_t dim, std::uint64_t at) {
    if (at == 0 || at == run_.layout[tensor].shape[dim]) return true;
    const auto cut = std::ranges::lower_bound(cuts, tensor, {}, &BlockCut::tensor);
    return cut != cuts.end() && cut->tensor == tensor && cut->dim == dim &&
           std::ranges::binary_search(cut->points, at);
  };
  for (const auto& [id, needs] : receivers_) {
    if (needs.layout != run_.layout.signature()) continue;
    for (std::uint32_t i = 0; i < std::min(needs.tensors.size(), run_.layout.size()); ++i) {
      const TensorNeed& need = needs.tensors[i];
      if (need.kind != TensorNeed::Kind::kSlice || need.dim >= run_.layout[i].shape.size())
        continue;
      if (is_cut(i, need.dim, need.begin) && is_cut(i, need.dim, need.begin + need.size)) continue;
      plain.insert(i);
    }
  }
  return {plain.begin(), plain.end()};
}

std::string ReceiverPlanner::who_cannot(Encoding encoding) const {
  std::string names;
  for (const auto& [id, needs] : receivers_) {
    const bool reads = std::ranges::find(needs.encodings, encoding) != needs.encodings.end();
    if (reads && (needs.old_values || encoding != Encoding::kCompact)) continue;
    names += concat(names.empty() ? "" : ", ", "'", id, "'");
  }
  return names;
}

// Frames may change their encoding from version to version; layouts for other readers may not.
Encoding ReceiverPlanner::encoding_for(Encoding wanted, std::vector<std::string>& notes) const {
  if (wanted == Encoding::kCompact && !codes_compact(options_)) {
    notes.emplace_back(
        "'compact' is coded on the host, or with a snapshot on the GPU, and these weights lie on a "
        "GPU that has none: versions are published in 'deltas'");
    wanted = Encoding::kDeltas;
  }
  const std::string who = who_cannot(wanted);
  if (who.empty()) return wanted;
  for (const Encoding other : {Encoding::kDeltas, Encoding::kIndices}) {
    if (!takes_blocks() || !who_cannot(other).empty()) continue;
    const bool coded = wanted == Encoding::kCompact;
    notes.push_back(concat("receivers ", who, " do not read '", info(wanted).name, "'",
                           coded ? ", or do not hold the old values that it needs" : "",
                           ": versions are published in '", info(other).name, "'"));
    return other;
  }
  notes.push_back(concat("receivers ", who, " do not read '", info(wanted).name,
                         "', and no encoding is read by all: these cannot follow; update them, ",
                         "or publish in another encoding"));
  return wanted == Encoding::kCompact ? Encoding::kDeltas : wanted;  // which most receivers read
}

// Uses the reports of the slowest receivers.
Encoding ReceiverPlanner::choose_encoding(const std::vector<ReceiverReport>& reports,
                                          std::vector<std::string>& notes) {
  LinkSpeed slowest;
  const auto least = [](std::uint64_t& of, std::uint64_t value) {
    if (value > 0 && (of == 0 || value < of)) of = value;
  };
  for (const ReceiverReport& report : reports) {
    const auto needs = receivers_.find(report.id);
    if (needs == receivers_.end()) continue;
    least(slowest.bytes_per_s, needs->second.bytes_per_s);
    if (report.version == run_.id.version) least(slowest.units_per_s, needs->second.units_per_s);
  }
  // If the trainer restarts with another sharding, ranks could not read back `compact` blocks of
  // which they hold only parts; and receivers without a report may not hold the old values.
  const bool may_code =
      codes_compact(options_) && !receivers_.empty() &&
      std::ranges::none_of(boxes_, [](const auto& each) { return each.size() > 1; });
  const Encoding chosen = chooser_.choose(slowest, [&](Encoding encoding) {
    return who_cannot(encoding).empty() && (encoding != Encoding::kCompact || may_code);
  });
  if (!chooser_.why().empty()) notes.push_back(chooser_.why());
  return chosen;
}

std::vector<BlockCut> ReceiverPlanner::cuts_for(std::vector<std::string>& notes) const {
  if (!options_.cut_for_receivers || !takes_blocks()) return option_cuts_;
  std::map<std::uint32_t, std::pair<std::uint32_t, std::set<std::uint64_t>>> wanted;
  for (const BlockCut& cut : option_cuts_) {
    wanted[cut.tensor] = {cut.dim, {cut.points.begin(), cut.points.end()}};
  }
  std::set<std::uint32_t> otherwise;  // tensors held along several dimensions
  for (const auto& [id, needs] : receivers_) {
    if (!needs.ranges || needs.layout != run_.layout.signature()) continue;
    for (std::uint32_t i = 0; i < std::min(needs.tensors.size(), run_.layout.size()); ++i) {
      const TensorNeed& need = needs.tensors[i];
      if (!is_slice(run_.layout[i], need)) continue;
      auto& [dim, points] =
          wanted.try_emplace(i, need.dim, std::set<std::uint64_t>()).first->second;
      if (dim != need.dim) {
        otherwise.insert(i);
        continue;
      }
      if (need.begin > 0) points.insert(need.begin);
      const std::uint64_t end = need.begin + need.size;
      if (end < run_.layout[i].shape[dim]) points.insert(end);
    }
  }
  std::vector<BlockCut> cuts;
  for (auto& [tensor, cut] : wanted) {
    const auto& [dim, points] = cut;
    cuts.push_back({tensor, dim, {points.begin(), points.end()}});
    const Status good = check_cut(run_.layout[tensor], boxes_[tensor], cuts.back());
    if (good.ok()) continue;
    cuts.pop_back();
    notes.push_back(concat("not cut as the receivers want it: ", good.message()));
  }
  if (!otherwise.empty()) {
    notes.push_back(concat(otherwise.size(), " tensors, '", run_.layout[*otherwise.begin()].name,
                           "' among them, are held in slices of several dimensions; each is cut ",
                           "along one; the other receivers fetch it whole"));
  }
  return cuts;
}

VersionShape ReceiverPlanner::plan(const Result<std::vector<ReceiverReport>>& reports,
                                   std::vector<std::string>& notes) {
  VersionShape shape = run_.shape;
  planned_needs_ = adopted_needs_;
  if (!reports.ok()) return shape;  // unchanged
  std::map<std::string, std::string> needs_by_receiver;
  for (const ReceiverReport& report : *reports) needs_by_receiver[report.id] = report.needs;
  const bool news = needs_by_receiver != adopted_needs_;
  if (news) {
    read_needs(needs_by_receiver, notes);
    planned_needs_ = std::move(needs_by_receiver);
    shape.cuts = cuts_for(notes);
    shape.plain = plain_for(shape.cuts);
  }
  if (!news && !options_.encoding_auto) return shape;
  const Encoding wanted =
      options_.encoding_auto ? choose_encoding(*reports, notes) : options_.encoding;
  shape.encoding = encoding_for(wanted, notes);
  return shape;
}

void ReceiverPlanner::read_needs(const std::map<std::string, std::string>& needs_by_receiver,
                                 std::vector<std::string>& notes) {
  receivers_.clear();
  for (const auto& [id, text] : needs_by_receiver) {
    if (text.empty()) {  // for example an agent that waits for workers
      receivers_[id] = silent_needs();
      continue;
    }
    Result<ReceiverNeeds> needs = parse_needs(text, concat("receiver '", id, "'"));
    if (needs.ok()) {
      receivers_[id] = std::move(*needs);
    } else {
      receivers_[id] = silent_needs();
      notes.push_back(concat("needs that cannot be read: ", needs.status().message()));
    }
  }
}

}  // namespace driftless
