// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_places.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/host_kernels.h"
#include "plugin/checkpoint/verify.h"

namespace driftless {
namespace {

Status malformed_places(std::string_view what, std::string_view how) {
  return error(StatusCode::kCorrupt, what, ": ", how, "; is the same release on both sides?");
}

Result<std::vector<RankReply>> ask(EngineTransport& transport, std::string tensor,
                                   std::uint64_t first, std::uint64_t units, PauseState pause) {
  EngineCall call{.op = EngineOp::kRead};
  call.tensor = std::move(tensor);
  call.first = first;
  call.units = units;
  call.pause = pause;
  EngineAnswer answer = transport.carry(call);
  DRIFTLESS_RETURN_IF_ERROR(answer.status.with_context(transport.name()));
  return std::move(answer.ranks);
}

std::optional<std::uint64_t> number(const Json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<std::uint64_t>()) : std::nullopt;
}

Result<std::vector<std::byte>> bytes_of(const Json& hex, std::string_view what) {
  if (!hex.is_string()) return malformed_places(what, "elements without values");
  const auto& text = hex.get_ref<const std::string&>();
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    for (const char digit : text.substr(2 * i, 2)) {
      const bool letter = digit >= 'a' && digit <= 'f';
      if (!letter && (digit < '0' || digit > '9'))
        return malformed_places(what, "values are not hex");
      value = value * 16 + static_cast<unsigned>(letter ? digit - 'a' + 10 : digit - '0');
    }
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

// One tensor of the checkpoint, and the ranks' shares of it.
class Search {
 public:
  Search(EngineTransport& transport, const Checkpoint& checkpoint, std::size_t limit,
         PauseState pause, DifferentPlaces& found)
      : transport_(transport),
        checkpoint_(checkpoint),
        limit_(limit),
        pause_(pause),
        found_(found) {}

  // `regions`: the region of each rank that has a share of the tensor.
  Status look_into(std::uint32_t tensor, const std::map<std::int64_t, std::string>& regions) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankReply> replies,
                               ask(transport_, spec(tensor).name, 0, 0, pause_));
    std::uint64_t block_units = 0;
    std::set<std::uint64_t> suspects;
    std::map<std::string, std::vector<std::string>> digests;  // by region
    for (const RankReply& reply : replies) {
      const auto region = regions.find(reply.rank);
      if (region == regions.end()) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(reply.text, transport_.name()));
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> blocks,
                                 blocks_of(json, reply, suspects));
      const auto [known, fresh] = digests.try_emplace(region->second, blocks);
      if (!fresh) note_different(known->second, blocks, suspects);
      block_units = std::max<std::uint64_t>(1, number(json["block_units"]).value_or(0));
    }
    DRIFTLESS_RETURN_IF_ERROR(compare_sums(tensor, digests, block_units, suspects));
    for (const std::uint64_t block : suspects) {
      const std::uint64_t first = block * block_units;
      if (first >= spec(tensor).units()) break;
      if (found_.more) return {};
      DRIFTLESS_RETURN_IF_ERROR(
          compare(tensor, first, std::min(block_units, spec(tensor).units() - first)));
    }
    return {};
  }

 private:
  [[nodiscard]] const TensorSpec& spec(std::uint32_t tensor) const {
    return checkpoint_.layout()[tensor];
  }

  [[nodiscard]] Result<std::vector<std::string>> blocks_of(
      const Json& json, const RankReply& reply, std::set<std::uint64_t>& suspects) const {
    if (!json.contains("blocks")) {
      return error(StatusCode::kUnsupported, transport_.name(), ": rank ", reply.rank,
                   " reports no blocks", reply.error.empty() ? "" : ": ", reply.error);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Json* blocks, json_array(json, "blocks", transport_.name()));
    DRIFTLESS_ASSIGN_OR_RETURN(const Json* others, json_array(json, "disagree", transport_.name()));
    std::vector<std::string> digests;
    for (const Json& each : *blocks) {
      if (!each.is_string()) return malformed_places(transport_.name(), "a block without a digest");
      digests.push_back(each.get<std::string>());
    }
    for (const Json& each : *others) suspects.insert(number(each).value_or(0));
    return digests;
  }

  static void note_different(const std::vector<std::string>& a, const std::vector<std::string>& b,
                             std::set<std::uint64_t>& suspects) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] != b[i]) suspects.insert(i);
    }
  }

  // Finds the blocks whose shares, with each region counted once, do not add up to the
  // checkpoint's.
  Status compare_sums(std::uint32_t tensor,
                      const std::map<std::string, std::vector<std::string>>& digests,
                      std::uint64_t block_units, std::set<std::uint64_t>& suspects) const {
    if (block_units == 0) return {};
    const TensorView view = checkpoint_.tensor(tensor);
    const unsigned width = unit_bytes(spec(tensor).dtype);
    const DigestTensorKey key = digest_tensor_key(spec(tensor).name);
    const std::uint64_t units = spec(tensor).units();
    for (std::uint64_t block = 0; block * block_units < units; ++block) {
      Digest sum;
      for (const auto& [region, blocks] : digests) {
        if (block >= blocks.size()) return malformed_places(transport_.name(), "too few blocks");
        DRIFTLESS_ASSIGN_OR_RETURN(const Digest share, digest_from_hex(blocks[block]));
        sum += share;
      }
      const std::uint64_t first = block * block_units;
      const std::uint64_t count = std::min(block_units, units - first);
      const std::span bytes(view.data + first * width, count * width);
      if (sum != host_kernels().digest(key, first * width, bytes)) suspects.insert(block);
    }
    return {};
  }

  // Compares every element of a block, on every rank and in every parameter that holds it.
  Status compare(std::uint32_t tensor, std::uint64_t first, std::uint64_t units) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankReply> replies,
                               ask(transport_, spec(tensor).name, first, units, pause_));
    const std::size_t before = found_.places.size();
    for (const RankReply& reply : replies) {
      DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(reply.text, transport_.name()));
      if (!json.contains("copies")) continue;
      for (const Json& copy : json["copies"]) {
        DRIFTLESS_RETURN_IF_ERROR(compare_copy(tensor, reply.rank, copy));
      }
    }
    const auto from = found_.places.begin() + static_cast<std::ptrdiff_t>(before);
    std::stable_sort(from, found_.places.end(),
                     [](const auto& a, const auto& b) { return a.position < b.position; });
    found_.more = found_.places.size() > limit_;
    if (found_.more) found_.places.resize(limit_);
    return {};
  }

  Status compare_copy(std::uint32_t tensor, std::int64_t rank, const Json& copy) {
    if (!copy.is_array() || copy.size() != 4 || !copy[0].is_string() || !copy[1].is_array()) {
      return malformed_places(transport_.name(), "elements that are no list of four");
    }
    const unsigned width = unit_bytes(spec(tensor).dtype);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> values,
                               bytes_of(copy[2], transport_.name()));
    std::set<std::uint64_t> foreign;
    for (const Json& each : copy[3]) foreign.insert(number(each).value_or(0));
    std::size_t at = 0;
    for (const Json& run : copy[1]) {
      const bool pair = run.is_array() && run.size() == 2 && number(run[0]) && number(run[1]);
      const std::uint64_t begin = pair ? *number(run[0]) : 0, count = pair ? *number(run[1]) : 0;
      const std::uint64_t all = spec(tensor).units();
      if (!pair || begin > all || count > all - begin || count > (values.size() - at) / width) {
        return malformed_places(transport_.name(), "elements that the tensor does not have");
      }
      for (std::uint64_t unit = begin; unit < begin + count; ++unit, at += width) {
        const std::byte* const expected = checkpoint_.tensor(tensor).data + unit * width;
        const bool odd = foreign.contains(unit);
        if (!odd && std::memcmp(expected, values.data() + at, width) == 0) continue;
        const DType dtype = spec(tensor).dtype;
        found_.places.push_back({spec(tensor).name, unit, rank, copy[0].get<std::string>(),
                                 concat(describe_unit(dtype, values.data() + at),
                                        odd ? ", and more bits than the type has" : ""),
                                 describe_unit(dtype, expected)});
      }
    }
    return {};
  }

  EngineTransport& transport_;
  const Checkpoint& checkpoint_;
  std::size_t limit_;
  PauseState pause_;
  DifferentPlaces& found_;
};

}  // namespace

Result<DifferentPlaces> find_places(EngineTransport& transport, const Checkpoint& checkpoint,
                                    std::size_t limit, PauseState pause) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankReply> replies, ask(transport, "", 0, 0, pause));
  std::vector<RankShares> ranks;
  std::set<std::string> suspects;
  std::map<std::string, std::map<std::int64_t, std::string>> regions;  // by tensor and rank
  for (const RankReply& reply : replies) {
    DRIFTLESS_ASSIGN_OR_RETURN(RankShares rank, parse_rank_shares(reply, transport.name()));
    if (!rank.error.empty()) {
      return error(StatusCode::kUnsupported, transport.name(), ": rank ", rank.rank, ": ",
                   rank.error);
    }
    rank.holds = {};  // any version
    for (RankShare& share : rank.shares) {
      regions[share.tensor][rank.rank] = share.region;
      if (const auto number = checkpoint.layout().find(share.tensor)) {
        const TensorView view = checkpoint.tensor(*number);
        share.manifest = host_kernels().digest(digest_tensor_key(share.tensor), 0,
                                               {view.data, view.spec->size_bytes});
      }
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(reply.text, transport.name()));
    for (const Json& name : json.value("suspects", Json::array())) {
      if (name.is_string()) suspects.insert(name.get<std::string>());
    }
    ranks.push_back(std::move(rank));
  }
  DifferentPlaces found;
  Search search(transport, checkpoint, limit, pause, found);
  for (const TensorVerdict& tensor : add_up(ranks).tensors) {
    const auto number = checkpoint.layout().find(tensor.tensor);
    const bool differs =
        tensor.verdict == ShareVerdict::kDiffers || suspects.contains(tensor.tensor);
    if (tensor.verdict == ShareVerdict::kUnknown) found.not_compared.push_back(tensor.tensor);
    if (!differs || !number || found.more) continue;
    DRIFTLESS_RETURN_IF_ERROR(
        search.look_into(static_cast<std::uint32_t>(*number), regions[tensor.tensor]));
  }
  return found;
}

nlohmann::ordered_json places_to_json(const DifferentPlaces& places) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const DifferentPlace& each : places.places) {
    json.push_back({{"tensor", each.tensor},
                    {"position", each.position},
                    {"rank", each.rank},
                    {"parameter", each.parameter},
                    {"value", each.value},
                    {"expected", each.expected}});
  }
  return json;
}

}  // namespace driftless
