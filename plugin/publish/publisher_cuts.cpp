// SPDX-License-Identifier: Apache-2.0
// How the leader wants tensors to be cut, so that receivers can fetch their slices alone.
#include <algorithm>

#include "plugin/publish/publisher_rank.h"

namespace driftless {
namespace {

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

}  // namespace

Result<std::vector<BlockCut>> PublisherRank::wanted_cuts(
    std::span<const TensorSpec> tensors, std::span<const std::vector<TensorBox>> boxes) const {
  if (options_.cuts.empty()) return std::vector<BlockCut>();
  if (!takes_blocks()) {
    return error(StatusCode::kUnsupported, "cuts are for frames from the host, but ",
                 options_.device != nullptr
                     ? std::string("this publisher has a GPU")
                     : concat("layout ", to_string(options_.layout), " has whole tensors"),
                 "; leave the cuts out, or publish frames from the host");
  }
  std::map<std::uint32_t, BlockCut> cuts;
  for (const TensorCut& wanted : options_.cuts) {
    const auto found = std::ranges::find(tensors, wanted.tensor, &TensorSpec::name);
    if (found == tensors.end()) {
      return error(StatusCode::kInvalidArgument, "a cut of tensor '", wanted.tensor,
                   "', which no publisher rank offers");
    }
    const auto tensor = static_cast<std::uint32_t>(found - tensors.begin());
    BlockCut cut{tensor, wanted.dim, {}};
    if (wanted.parts > 1) {
      const std::uint64_t length = wanted.dim < found->shape.size() ? found->shape[wanted.dim] : 1;
      cut.steps.push_back(std::max<std::uint64_t>((length + wanted.parts - 1) / wanted.parts, 1));
    }
    DRIFTLESS_RETURN_IF_ERROR(check_cut(*found, boxes[tensor], cut));
    if (!cuts.emplace(tensor, std::move(cut)).second) {
      return error(StatusCode::kInvalidArgument, "tensor '", wanted.tensor, "' has two cuts");
    }
  }
  std::vector<BlockCut> sorted;
  for (auto& [tensor, cut] : cuts) sorted.push_back(std::move(cut));
  return sorted;
}

}  // namespace driftless
