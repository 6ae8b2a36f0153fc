// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/quantization.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace driftless {
namespace {

constexpr std::uint64_t kMaxModelConfigBytes = 64 << 20;

// The quantization_config; null if there is none.
Result<Json> quantization_of(FileSystem& fs, const Checkpoint& base) {
  if (base.directory().empty()) return Json();
  const Result<CheckpointFile> file =
      open_checkpoint_file(fs, base.directory(), std::string(kModelConfigName));
  if (file.status().code() == StatusCode::kNotFound) return Json();
  DRIFTLESS_RETURN_IF_ERROR(file.status());
  const std::string path = join_path(base.path(), kModelConfigName);
  const std::span<const std::byte> bytes = file->content.bytes();
  if (bytes.size() > kMaxModelConfigBytes) {
    return error(StatusCode::kCorrupt, path, ": ", bytes.size(), " bytes, at most ",
                 kMaxModelConfigBytes, " are expected");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Json config,
      parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path));
  if (!config.is_object()) return error(StatusCode::kCorrupt, path, ": is not an object");
  for (const char* const key : {"quantization_config", "compression_config"}) {
    const Json found = config.value(key, Json());
    if (found.is_object()) return found;
    if (!found.is_null()) return error(StatusCode::kCorrupt, path, ": ", key, " is not an object");
  }
  return Json();
}

std::string text_of(const Json& object, const char* key) {
  const Json found = object.value(key, Json());
  return found.is_string() ? found.get<std::string>() : std::string();
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The scheme's name for people; empty: FP8 blocks as they are made here.
std::string other_scheme(const Json& config) {
  const std::string method = text_of(config, "quant_method");
  const std::string all = config.dump(-1, ' ', true, Json::error_handler_t::replace);
  const Json block = config.value("weight_block_size", Json());
  if (has(all, "mxfp8") || has(all, "MXFP8") || (method == "fp8" && block == Json{1, 32})) {
    return "MXFP8";
  }
  if (has(all, "mxfp4") || has(all, "MXFP4")) return "MXFP4";
  if (has(all, "nvfp4") || has(all, "NVFP4") || has(method, "fp4")) return "NVFP4";
  if (method == "compressed-tensors") {
    if (has(all, "\"num_bits\":4")) return "INT4 (compressed-tensors)";
    return "compressed-tensors";
  }
  if (method == "gptq" || method == "awq") return "INT4 (" + method + ")";
  if (method != "fp8") return method.empty() ? "an unnamed scheme" : method;
  if (block.is_null()) return "FP8 with one scale for a tensor";
  if (block != Json{kQuantizeBlock, kQuantizeBlock}) return "FP8 with blocks of " + block.dump();
  const std::string format = text_of(config, "fmt");
  if (!format.empty() && format != "e4m3") return "FP8 as " + format;
  if (text_of(config, "activation_scheme") == "static") return "FP8 with static activations";
  return {};
}

Status check_scheme(const Checkpoint& base, const Json& config, const QuantizeSettings& settings) {
  const std::string other = other_scheme(config);
  if (!other.empty()) {
    return error(StatusCode::kUnsupported, "the base ", base.path(), " is quantized as ",
                 shown(other),
                 ", which is not made here: use a base that driftless quantize "
                 "makes, or one in bfloat16 and an engine that quantizes as it loads");
  }
  if (text_of(config, "scale_fmt") == "ue8m0" && settings.rule != QuantizeRule::kUe8m0) {
    return error(StatusCode::kInvalidArgument, "quantize.rule is ", to_string(settings.rule),
                 ", but ", join_path(base.path(), kModelConfigName),
                 " says scale_fmt: ue8m0: set quantize.rule: ue8m0");
  }
  return {};
}

// How many tensors have scales.
Result<std::size_t> check_scales(const Checkpoint& base) {
  std::size_t found = 0;
  const WeightLayout& layout = base.layout();
  for (const TensorSpec& scales : layout.tensors()) {
    if (!scales.name.ends_with(kScaleSuffix)) continue;
    const std::string name = scales.name.substr(0, scales.name.size() - kScaleSuffix.size());
    const std::optional<std::uint32_t> at = layout.find(name);
    if (!at) {
      return error(StatusCode::kWrongLayout, base.path(), ": '", scales.name, "' has no tensor '",
                   name, "' beside it");
    }
    const TensorSpec& codes = layout[*at];
    if (codes.dtype != DType::kF8E4M3 || codes.shape.size() != 2) {
      return error(StatusCode::kUnsupported, base.path(), ": tensor '", name,
                   "' has scales and is ", info(codes.dtype).name, " ", codes.shape_string(),
                   "; only matrices of F8_E4M3 are quantized: use a base that driftless quantize "
                   "makes");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const TensorSpec expected, scales_of(codes));
    if (scales != expected) {
      return error(StatusCode::kUnsupported, base.path(), ": '", scales.name, "' is ",
                   info(scales.dtype).name, " ", scales.shape_string(), ", expected ",
                   info(expected.dtype).name, " ", expected.shape_string(),
                   ": use a base that driftless quantize makes");
    }
    ++found;
  }
  return found;
}

bool has_all_of(const WeightLayout& base, const WeightLayout& weights) {
  return std::ranges::all_of(weights.tensors(), [&](const TensorSpec& tensor) {
    const std::optional<std::uint32_t> at = base.find(tensor.name);
    return at && base[*at] == tensor;
  });
}

}  // namespace

Result<TensorSpec> scales_of(const TensorSpec& matrix) {
  return TensorSpec::make(concat(matrix.name, kScaleSuffix), DType::kF32,
                          {quantize_blocks(matrix.shape[0]), quantize_blocks(matrix.shape[1])});
}

Result<bool> needs_quantization(FileSystem& fs, const Checkpoint& base, const WeightLayout& weights,
                                const QuantizeSettings& settings) {
  const bool asked = settings.scheme == QuantizeScheme::kFp8Block;
  if (settings.scheme == QuantizeScheme::kNone) return false;
  if (has_all_of(base.layout(), weights)) {
    if (!asked) return false;
    return error(StatusCode::kInvalidArgument, "quantize.scheme is fp8_block, but the weights are ",
                 "of the types of the base ", base.path(), " already: set quantize.scheme: auto");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json config, quantization_of(fs, base));
  if (!config.is_null()) DRIFTLESS_RETURN_IF_ERROR(check_scheme(base, config, settings));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t scales, check_scales(base));
  if (!config.is_null() && scales > 0) return true;
  if (config.is_null() && scales == 0 && !asked) return false;
  return error(StatusCode::kInvalidArgument, "the base ", base.path(), " has scales of ", scales,
               " tensors and ", config.is_null() ? "no" : "a",
               " quantization_config in config.json: one with FP8 blocks has both; driftless "
               "quantize makes one");
}

}  // namespace driftless
