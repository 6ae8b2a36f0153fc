// SPDX-License-Identifier: Apache-2.0
#include "formats/run_info.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/quantize_rule.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::string_view kRunFormatName = "driftless-run";

Result<TensorSpec> read_tensor(const Json& item, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string name, json_string(item, "name", what));
  DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(name).with_context(what));
  const std::string tensor = concat(what, ": tensor ", shown(name, 400));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string dtype_name, json_string(item, "dtype", tensor));
  const Result<DType> dtype = parse_dtype(dtype_name);
  if (!dtype.ok()) {
    return error(StatusCode::kUnsupported, tensor, ": dtype ", shown(dtype_name),
                 " is not known here; use the same release on both sides");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> shape,
                             json_u64_list(item, "shape", tensor));
  return TensorSpec::make(std::move(name), *dtype, std::move(shape)).with_context(what);
}

Result<WeightLayout> read_layout(const Json& json, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* list, json_array(json, "tensors", what));
  std::vector<TensorSpec> tensors;
  for (const Json& item : *list) {
    DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec tensor, read_tensor(item, what));
    if (!tensors.empty() && tensors.back().name >= tensor.name) {
      return error(StatusCode::kCorrupt, what, ": the tensors are not sorted, or ",
                   shown(tensor.name, 400), " appears twice");
    }
    tensors.push_back(std::move(tensor));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(WeightLayout layout,
                             WeightLayout::make(std::move(tensors)).with_context(what));
  DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 stated, json_hash128(json, "weight_layout", what));
  if (stated != layout.signature()) {
    return error(StatusCode::kCorrupt, what, ": 'weight_layout' is ", to_hex(stated),
                 ", but the signature of its tensors is ", to_hex(layout.signature()));
  }
  return layout;
}

// Either all tensors have a digest, and these add up to the base's, or none has.
Status read_tensor_digests(const Json& json, std::string_view what, RunInfo& info) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* list, json_array(json, "tensors", what));
  Digest sum;
  for (const Json& item : *list) {
    if (!item.contains("digest")) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, json_digest(item, "digest", what));
    info.tensor_digests.push_back(digest);
    sum += digest;
  }
  if (info.tensor_digests.empty()) return {};
  if (info.tensor_digests.size() != info.layout.size()) {
    return error(StatusCode::kCorrupt, what, ": ", info.tensor_digests.size(), " of ",
                 info.layout.size(), " tensors have a digest; all must, or none");
  }
  if (sum == info.base_digest) return {};
  return error(StatusCode::kCorrupt, what, ": the digests of its tensors add up to ", to_hex(sum),
               ", but 'base_digest' is ", to_hex(info.base_digest));
}

Status read_unpublished(const Json& json, std::string_view what, RunInfo& info) {
  if (!json.contains("unpublished")) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* list, json_array(json, "unpublished", what));
  for (const Json& item : *list) {
    DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec, read_tensor(item, what));
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, json_digest(item, "digest", what));
    const bool sorted = info.unpublished.empty() || info.unpublished.back().spec.name < spec.name;
    if (!sorted || info.layout.find(spec.name)) {
      return error(StatusCode::kCorrupt, what, ": 'unpublished' is not sorted, or ",
                   shown(spec.name, 400), " appears twice, or among 'tensors'");
    }
    info.unpublished.push_back({std::move(spec), digest});
  }
  return {};
}

nlohmann::ordered_json tensor_to_json(const TensorSpec& tensor, const Digest* digest) {
  nlohmann::ordered_json item;
  if (digest != nullptr) item["digest"] = to_hex(*digest);
  item["name"] = tensor.name;
  item["dtype"] = driftless::info(tensor.dtype).name;
  item["shape"] = tensor.shape;
  return item;
}

}  // namespace

std::string run_info_to_json(const RunInfo& info) {
  nlohmann::ordered_json json;
  json["format"] = kRunFormatName;
  json["format_version"] = kRunInfoFormat;
  json["run"] = to_hex(info.run);
  json["ranks"] = info.ranks;
  if (!info.quantize_rule.empty()) json["quantize_rule"] = info.quantize_rule;
  if (info.used_numbers > 0) json["used_numbers"] = info.used_numbers;
  json["base_digest"] = to_hex(info.base_digest);
  json["weight_layout"] = to_hex(info.layout.signature());
  json["tensors"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < info.layout.size(); ++i) {
    const bool known = i < info.tensor_digests.size();
    json["tensors"].push_back(
        tensor_to_json(info.layout[i], known ? &info.tensor_digests[i] : nullptr));
  }
  for (const UnpublishedTensor& each : info.unpublished) {
    json["unpublished"].push_back(tensor_to_json(each.spec, &each.digest));
  }
  // The strict error handler would throw. A replaced byte changes the signature, so
  // parse_run_info() refuses the text.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<RunInfo> parse_run_info(std::string_view text, std::string_view what) {
  if (text.size() > kMaxRunInfoBytes) {
    return error(StatusCode::kCorrupt, what, ": ", text.size(), " bytes, at most ",
                 kMaxRunInfoBytes, " are expected");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  DRIFTLESS_RETURN_IF_ERROR(json_check_format(json, what, kRunFormatName, kRunInfoFormat));
  RunInfo result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.run, json_hash128(json, "run", what));
  if (result.run.is_zero()) return error(StatusCode::kCorrupt, what, ": 'run' is zero");
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t ranks, json_u64(json, "ranks", what));
  if (ranks == 0 || ranks > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kCorrupt, what, ": 'ranks' is ", ranks);
  }
  result.ranks = static_cast<std::uint32_t>(ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(result.base_digest, json_digest(json, "base_digest", what));
  DRIFTLESS_ASSIGN_OR_RETURN(result.layout, read_layout(json, what));
  DRIFTLESS_RETURN_IF_ERROR(read_tensor_digests(json, what, result));
  DRIFTLESS_RETURN_IF_ERROR(read_unpublished(json, what, result));
  DRIFTLESS_ASSIGN_OR_RETURN(result.quantize_rule,
                             json_optional_string(json, "quantize_rule", kMaxRuleName, what));
  if (json.contains("used_numbers")) {
    DRIFTLESS_ASSIGN_OR_RETURN(result.used_numbers, json_u64(json, "used_numbers", what));
  }
  return result;
}

}  // namespace driftless
