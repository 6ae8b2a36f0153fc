// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/quantization.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace driftless {
namespace {

constexpr std::uint64_t kMaxModelConfigBytes = 64 << 20;

// The base's quantization_config; null if there is none.
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

// The name of a format in lower case: some tools write it in upper case.
std::string format_of(const Json& object, const char* key) {
  std::string name = text_of(object, key);
  std::ranges::transform(name, name.begin(), [](char c) {
    return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The weights per group, if the configuration is INT4 in a form that we write; otherwise 0.
unsigned int4_group_of(const Json& config) {
  const Json groups = config.value("config_groups", Json());
  const std::string format = text_of(config, "format");
  if (text_of(config, "quant_method") != "compressed-tensors" || !groups.is_object() ||
      groups.size() != 1 || (!format.empty() && format != "pack-quantized")) {
    return 0;
  }
  const Json& only = groups.front();
  const Json weights = only.is_object() ? only.value("weights", Json()) : Json();
  if (!weights.is_object() || !only.value("input_activations", Json()).is_null()) return 0;
  const Json size = weights.value("group_size", Json());
  const bool made_here =
      weights.value("num_bits", Json()) == 4 && text_of(weights, "type") == "int" &&
      text_of(weights, "strategy") == "group" && weights.value("symmetric", Json(true)) == true &&
      weights.value("actorder", Json()).is_null() && size.is_number_unsigned() &&
      is_int4_group(size.get<std::uint64_t>());
  return made_here ? size.get<unsigned>() : 0;
}

// The scheme's name for messages; empty if it is one that we write.
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
    if (int4_group_of(config) > 0) return {};
    if (has(all, "\"num_bits\":4")) return "INT4 (compressed-tensors)";
    return "compressed-tensors";
  }
  if (method == "gptq" || method == "awq") return "INT4 (" + method + ")";
  if (method != "fp8") return method.empty() ? "an unnamed scheme" : method;
  if (block.is_null()) return "FP8 with one scale for a tensor";
  if (block != Json{kQuantizeBlock, kQuantizeBlock}) return "FP8 with blocks of " + block.dump();
  const std::string format = format_of(config, "fmt");
  const bool e4m3 = format.empty() || format == "e4m3" || format == "e4m3fn" ||
                    format == "float8_e4m3fn";  // torch's name of the same type
  if (!e4m3) return "FP8 as " + text_of(config, "fmt");
  if (text_of(config, "activation_scheme") == "static") return "FP8 with static activations";
  return {};
}

Status check_scheme(const Checkpoint& base, const Json& config, const QuantizeSettings& settings) {
  const std::string other = other_scheme(config);
  if (!other.empty()) {
    return error(StatusCode::kUnsupported, "the base ", base.path(), " is quantized as ",
                 shown(other),
                 ", which Driftless does not write: use a base that driftless quantize "
                 "makes, or one in bfloat16 and an engine that quantizes as it loads");
  }
  const bool int4 = int4_group_of(config) > 0;
  if (settings.scheme == (int4 ? QuantizeScheme::kFp8Block : QuantizeScheme::kInt4Group)) {
    return error(StatusCode::kInvalidArgument, "quantize.scheme is ",
                 int4 ? "fp8_block" : "int4_group", ", but the base ", base.path(), " has ",
                 int4 ? "groups in INT4" : "FP8 blocks", ": set quantize.scheme: auto");
  }
  if (int4 && settings.rule != QuantizeRule::kLinear) {
    return error(StatusCode::kInvalidArgument, "quantize.rule is ", to_string(settings.rule),
                 ", but the base ", base.path(),
                 " has groups in INT4, for which there is one rule: leave quantize.rule out");
  }
  if (format_of(config, "scale_fmt") == "ue8m0" && settings.rule != QuantizeRule::kUe8m0) {
    return error(StatusCode::kInvalidArgument, "quantize.rule is ", to_string(settings.rule),
                 ", but ", join_path(base.path(), kModelConfigName),
                 " says scale_fmt: ", text_of(config, "scale_fmt"), ": set quantize.rule: ue8m0");
  }
  return {};
}

// The number of tensors with scales, which are checked.
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

// The number of tensors in groups of this size, which are checked.
Result<std::size_t> check_groups(const Checkpoint& base, unsigned group) {
  std::size_t found = 0;
  const WeightLayout& layout = base.layout();
  for (const TensorSpec& packed : layout.tensors()) {
    if (!packed.name.ends_with(kPackedSuffix)) continue;
    const std::string name = packed.name.substr(0, packed.name.size() - kPackedSuffix.size());
    if (packed.dtype != DType::kI32 || packed.shape.size() != 2 ||
        packed.shape[1] * kInt4InWord % group != 0) {
      return error(StatusCode::kUnsupported, base.path(), ": '", packed.name, "' is ",
                   info(packed.dtype).name, " ", packed.shape_string(),
                   ", expected a matrix of I32 whose rows are groups of ", group,
                   ": use a base that driftless quantize --scheme int4_group makes");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(
        const TensorSpec matrix,
        TensorSpec::make(name, DType::kBF16, {packed.shape[0], packed.shape[1] * kInt4InWord}));
    DRIFTLESS_ASSIGN_OR_RETURN(const Int4Tensors expected, int4_tensors_of(matrix, group));
    const auto scales = layout.find(expected.scales.name), shape = layout.find(expected.shape.name);
    const bool whole = scales && layout[*scales] == expected.scales && shape &&
                       layout[*shape].shape == expected.shape.shape &&
                       (layout[*shape].dtype == DType::kI32 || layout[*shape].dtype == DType::kI64);
    if (!whole) {
      return error(StatusCode::kWrongLayout, base.path(), ": '", packed.name, "' ",
                   packed.shape_string(), " needs '", expected.scales.name, "' as BF16 ",
                   expected.scales.shape_string(), " and '", expected.shape.name,
                   "' as I32 [2] beside it: use a base that driftless quantize --scheme int4_group "
                   "makes");
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

// Whether the base is quantized, but has none of these weights in quantized form: another rank may
// hold the weights that it quantizes.
bool keeps_all_of(const WeightLayout& base, const WeightLayout& weights) {
  const auto is_made = [](const TensorSpec& tensor) {
    return tensor.name.ends_with(kScaleSuffix) || tensor.name.ends_with(kPackedSuffix);
  };
  return std::ranges::any_of(base.tensors(), is_made) &&
         std::ranges::none_of(weights.tensors(), [&](const TensorSpec& tensor) {
           return is_made(tensor) || base.find(concat(tensor.name, kScaleSuffix));
         });
}

}  // namespace

Result<TensorSpec> scales_of(const TensorSpec& matrix) {
  return TensorSpec::make(concat(matrix.name, kScaleSuffix), DType::kF32,
                          {quantize_blocks(matrix.shape[0]), quantize_blocks(matrix.shape[1])});
}

Result<Int4Tensors> int4_tensors_of(const TensorSpec& matrix, unsigned group) {
  const std::uint64_t rows = matrix.shape[0], columns = matrix.shape[1];
  Int4Tensors made;
  DRIFTLESS_ASSIGN_OR_RETURN(made.packed,
                             TensorSpec::make(concat(matrix.name, kPackedSuffix), DType::kI32,
                                              {rows, columns / kInt4InWord}));
  DRIFTLESS_ASSIGN_OR_RETURN(made.scales, TensorSpec::make(concat(matrix.name, kGroupScaleSuffix),
                                                           DType::kBF16, {rows, columns / group}));
  DRIFTLESS_ASSIGN_OR_RETURN(made.shape,
                             TensorSpec::make(concat(matrix.name, kShapeSuffix), DType::kI32, {2}));
  return made;
}

std::vector<std::byte> int4_shape_bytes(const TensorSpec& matrix, DType dtype) {
  const std::size_t width = unit_bytes(dtype);
  std::vector<std::byte> bytes(2 * width);
  for (std::size_t i = 0; i < 2; ++i) {
    std::memcpy(bytes.data() + i * width, &matrix.shape[i], width);  // little-endian
  }
  return bytes;
}

Result<QuantizedAs> needs_quantization(FileSystem& fs, const Checkpoint& base,
                                       const WeightLayout& weights,
                                       const QuantizeSettings& settings) {
  const bool asked = settings.scheme != QuantizeScheme::kAuto;
  QuantizedAs as;
  as.rule = settings.rule;
  if (settings.scheme == QuantizeScheme::kNone) return as;
  const bool same = has_all_of(base.layout(), weights);
  if (same && !asked) return as;
  if (same && !keeps_all_of(base.layout(), weights)) {
    return error(StatusCode::kInvalidArgument, "quantize.scheme is ",
                 settings.scheme == QuantizeScheme::kFp8Block ? "fp8_block" : "int4_group",
                 ", but the weights already have the types of the base ", base.path(),
                 ": set quantize.scheme: auto");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json config, quantization_of(fs, base));
  if (!config.is_null()) DRIFTLESS_RETURN_IF_ERROR(check_scheme(base, config, settings));
  as.int4_group = config.is_null() ? 0 : int4_group_of(config);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t scales, as.int4_group > 0
                                                           ? check_groups(base, as.int4_group)
                                                           : check_scales(base));
  const bool quantized = !config.is_null() && scales > 0;
  as.quantized = quantized && !same;
  if (quantized || (config.is_null() && scales == 0 && !asked)) return as;
  return error(StatusCode::kInvalidArgument, "the base ", base.path(), " has scales of ", scales,
               " tensors and ", config.is_null() ? "no" : "a",
               " quantization_config in config.json, but a quantized base has both; make one with "
               "driftless quantize");
}

}  // namespace driftless
