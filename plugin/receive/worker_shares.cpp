// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/worker_shares.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace driftless {
namespace {

// Elements per block: blocks are compared by digest, then differing ones are read.
constexpr std::uint64_t kBlockUnits = 1 << 16;

std::string hex_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte each : bytes) {
    const auto value = std::to_integer<unsigned>(each);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

Json blocks_json(const BlockSums& found) {
  Json blocks = Json::array();
  for (const Digest& each : found.sums) blocks.push_back(to_hex(each));
  return {{"block_units", kBlockUnits}, {"blocks", blocks}, {"disagree", found.disagree}};
}

Json copies_json(const std::vector<HeldCopy>& found) {
  Json copies = Json::array();
  for (const HeldCopy& each : found) {
    Json runs = Json::array();
    for (const HeldRun& run : each.runs) runs.push_back(Json::array({run.first, run.count}));
    copies.push_back(Json::array({each.parameter, runs, hex_of(each.values), each.foreign}));
  }
  return {{"copies", copies}};
}

}  // namespace

Json shares_json(const WeightLayout& layout, const Shares& shares, const Receiver* receiver) {
  std::map<std::string_view, std::string> whole;
  for (std::size_t i = 0; receiver != nullptr && i < receiver->tensor_digests().size(); ++i) {
    whole.emplace(receiver->layout()[i].name, to_hex(receiver->tensor_digests()[i]));
  }
  std::set<std::uint32_t> listed;
  Json rows = Json::array(), unproven = Json::array(), absent = Json::array();
  for (const TensorShare& each : shares.tensors) {
    const TensorSpec& spec = layout[each.tensor];
    const auto manifest = whole.find(spec.name);
    rows.push_back(
        Json::array({spec.name, each.units, spec.units(), to_hex(each.region), to_hex(each.digest),
                     manifest == whole.end() ? "" : manifest->second}));
    listed.insert(each.tensor);
  }
  for (const UnprovenTensor& each : shares.unproven) {
    unproven.push_back(Json::array({layout[each.tensor].name, each.why}));
    listed.insert(each.tensor);
  }
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    if (layout[i].units() > 0 && !listed.contains(i)) absent.push_back(layout[i].name);
  }
  return {{"shares", rows}, {"unproven", unproven}, {"absent", absent}};
}

Result<Json> read_json(const MappedTarget& target, const std::string& tensor, std::uint64_t first,
                       std::uint64_t units) {
  const WeightLayout& layout = *target.layout();
  if (tensor.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const LookedShares looked, target.look());
    Json shares = shares_json(layout, looked.shares, nullptr);
    shares["suspects"] = Json::array();
    for (const std::uint32_t each : looked.suspects) {
      shares["suspects"].push_back(layout[each].name);
    }
    return shares;
  }
  const std::optional<std::uint32_t> number = layout.find(tensor);
  if (!number) {
    return error(StatusCode::kInvalidArgument, "there is no tensor ", shown(tensor));
  }
  if (units > kBlockUnits) {
    return error(StatusCode::kInvalidArgument, units, " elements: at most ", kBlockUnits);
  }
  if (units == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockSums found, target.blocks(*number, kBlockUnits));
    return blocks_json(found);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const auto found, target.copies(*number, first, units));
  return copies_json(found);
}

}  // namespace driftless
