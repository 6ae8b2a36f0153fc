// SPDX-License-Identifier: Apache-2.0
// How a version is cut and encoded: as the options say, and as the receivers announce, so that all
// can read it, and fetch their slices without the rest.
#include <algorithm>
#include <set>

#include "plugin/publish/publisher_rank.h"

namespace driftless {
namespace {

// Less is not worth the row of a table, and a request.
constexpr std::uint64_t kLeastSliceBytes = std::uint64_t{16} << 10;

// Ok if all blocks of the tensor can be cut so, and a reader takes what comes out.
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

// `parts` of equal size; the last ones may be smaller.
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

}  // namespace

Result<std::vector<BlockCut>> PublisherRank::wanted_cuts(
    std::span<const TensorSpec> tensors) const {
  if (options_.cuts.empty()) return std::vector<BlockCut>();
  if (!takes_cuts()) {
    return error(StatusCode::kUnsupported, "cuts are for frames in host memory, but ",
                 takes_blocks()
                     ? std::string("the parts of this road lie on a GPU")
                     : concat("layout ", to_string(options_.layout), " has whole tensors"),
                 "; leave the cuts out, or publish frames over another road");
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
    DRIFTLESS_RETURN_IF_ERROR(check_cut(*found, all_boxes_[tensor], cut));
    if (!cuts.emplace(tensor, std::move(cut)).second) {
      return error(StatusCode::kInvalidArgument, "tensor '", wanted.tensor, "' has two cuts");
    }
  }
  std::vector<BlockCut> sorted;
  for (auto& [tensor, cut] : cuts) sorted.push_back(std::move(cut));
  return sorted;
}

// Frames may change their encoding from version to version; directories of others may not.
Encoding PublisherRank::encoding_for(const std::map<std::string, ReceiverNeeds>& receivers,
                                     std::vector<std::string>& notes) const {
  const auto who_cannot = [&](Encoding encoding) {
    std::string names;
    for (const auto& [id, needs] : receivers) {
      if (std::ranges::find(needs.encodings, encoding) != needs.encodings.end()) continue;
      names += concat(names.empty() ? "" : ", ", "'", id, "'");
    }
    return names;
  };
  const std::string who = who_cannot(options_.encoding);
  if (who.empty()) return options_.encoding;
  const bool frames =
      options_.layout == DirectoryLayout::kFrames || options_.layout == DirectoryLayout::kHdf5;
  for (const Encoding other : {Encoding::kDeltas, Encoding::kIndices}) {
    if (!frames || !who_cannot(other).empty()) continue;
    notes.push_back(concat("receivers ", who, " do not read '", info(options_.encoding).name,
                           "': versions are published in '", info(other).name, "'"));
    return other;
  }
  notes.push_back(concat("receivers ", who, " do not read '", info(options_.encoding).name,
                         "', and there is nothing that all read: they cannot follow; update them, ",
                         "or publish in another encoding"));
  return options_.encoding;
}

std::vector<BlockCut> PublisherRank::cuts_for(const std::map<std::string, ReceiverNeeds>& receivers,
                                              std::vector<std::string>& notes) const {
  if (!options_.cut_for_receivers || !takes_cuts()) return own_cuts_;
  std::map<std::uint32_t, std::pair<std::uint32_t, std::set<std::uint64_t>>> wanted;
  for (const BlockCut& cut : own_cuts_) {
    wanted[cut.tensor] = {cut.dim, {cut.points.begin(), cut.points.end()}};
  }
  std::set<std::uint32_t> otherwise;  // tensors that receivers hold along several dimensions
  for (const auto& [id, needs] : receivers) {
    if (!needs.ranges || needs.layout != layout_.signature()) continue;
    for (std::uint32_t i = 0; i < std::min(needs.tensors.size(), layout_.size()); ++i) {
      const TensorNeed& need = needs.tensors[i];
      if (!is_slice(layout_[i], need)) continue;
      auto& [dim, points] =
          wanted.try_emplace(i, need.dim, std::set<std::uint64_t>()).first->second;
      if (dim != need.dim) {
        otherwise.insert(i);
        continue;
      }
      if (need.begin > 0) points.insert(need.begin);
      const std::uint64_t end = need.begin + need.size;
      if (end < layout_[i].shape[dim]) points.insert(end);
    }
  }
  std::vector<BlockCut> cuts;
  for (auto& [tensor, cut] : wanted) {
    const auto& [dim, points] = cut;
    cuts.push_back({tensor, dim, {points.begin(), points.end()}});
    const Status good = check_cut(layout_[tensor], all_boxes_[tensor], cuts.back());
    if (good.ok()) continue;
    cuts.pop_back();
    notes.push_back(concat("not cut as the receivers want it: ", good.message()));
  }
  if (!otherwise.empty()) {
    notes.push_back(concat(otherwise.size(), " tensors, '", layout_[*otherwise.begin()].name,
                           "' among them, are held in slices of several dimensions; each is cut ",
                           "along one, and the others fetch it whole"));
  }
  return cuts;
}

void PublisherRank::hear_receivers(LeaderMessage& plan) {
  plan.encoding = static_cast<std::uint8_t>(encoding_);
  const Result<std::vector<ReceiverReport>> reports = road_.receivers();
  hearing_ = heard_;
  if (!reports.ok()) return;  // as before
  std::map<std::string, std::string> heard;
  for (const ReceiverReport& report : *reports) {
    if (!report.needs.empty()) heard[report.id] = report.needs;
  }
  if (heard == heard_) return;
  std::map<std::string, ReceiverNeeds> receivers;
  for (const auto& [id, text] : heard) {
    Result<ReceiverNeeds> needs = parse_needs(text, concat("receiver '", id, "'"));
    if (needs.ok()) {
      receivers[id] = std::move(*needs);
    } else {
      plan.notes.push_back(concat("what it needs cannot be read: ", needs.status().message()));
    }
  }
  hearing_ = std::move(heard);
  plan.encoding = static_cast<std::uint8_t>(encoding_for(receivers, plan.notes));
  plan.cuts = cuts_for(receivers, plan.notes);
  plan.recut = plan.cuts != cuts_;
}

Status PublisherRank::adopt(const LeaderMessage& plan) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Encoding encoding, encoding_from_wire(plan.encoding));
  if (encoding != encoding_ && info(encoding).positional) buffers_.emplace(layout_, encoding);
  encoding_ = encoding;
  heard_ = hearing_;
  if (!plan.recut) return {};
  cuts_ = plan.cuts;
  return snapshot_.recut(plan.cuts);
}

}  // namespace driftless
