// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/model_shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/strict_json.h"
#include "tools/qwen3_shape.h"

namespace driftless {
namespace {

// The layers that have routed experts, and the keys of their sizes.
enum class Experts : unsigned char { kNone, kEveryLayer, kSparseStep, kAfterDense };

struct Family {
  std::string_view model_type;
  Experts experts = Experts::kNone;
  bool latent_attention = false;  // MLA
  bool qkv_bias = false;
  bool qk_norm = false;
  std::string_view count_key = "num_experts";
  std::string_view expert_size_key = "moe_intermediate_size";
  bool router_bias = false;
};

constexpr Family kFamilies[] = {
    {.model_type = "llama"},
    {.model_type = "mistral"},
    {.model_type = "qwen2", .qkv_bias = true},
    {.model_type = "qwen3", .qk_norm = true},
    {.model_type = "qwen3_moe", .experts = Experts::kSparseStep, .qk_norm = true},
    {.model_type = "mixtral",
     .experts = Experts::kEveryLayer,
     .count_key = "num_local_experts",
     .expert_size_key = "intermediate_size"},
    {.model_type = "glm4_moe",
     .experts = Experts::kAfterDense,
     .count_key = "n_routed_experts",
     .router_bias = true},
    {.model_type = "deepseek_v3",
     .experts = Experts::kAfterDense,
     .latent_attention = true,
     .count_key = "n_routed_experts",
     .router_bias = true},
    {.model_type = "kimi_k2",
     .experts = Experts::kAfterDense,
     .latent_attention = true,
     .count_key = "n_routed_experts",
     .router_bias = true},
};

constexpr double kMostSize = 1 << 24;  // of one dimension, or of a number of layers or experts
constexpr double kMostWeights = 1e15;  // doubles are exact up to here

// Reads numbers and keeps the first error.
class Fields {
 public:
  Fields(const Json& config, std::string_view what) : config_(config), what_(what) {}

  [[nodiscard]] bool has(std::string_view key) const {
    const auto at = config_.find(key);
    return at != config_.end() && !at->is_null();
  }
  [[nodiscard]] bool flag(std::string_view key, bool otherwise = false) {
    if (!has(key)) return otherwise;
    const Json& value = *config_.find(key);
    if (!value.is_boolean()) fail(key, "true or false");
    return value.is_boolean() ? value.get<bool>() : otherwise;
  }
  [[nodiscard]] double number(std::string_view key, double least = 1) {
    if (!has(key)) return fail(key, "a number");
    const Json& value = *config_.find(key);
    const double found = value.is_number_unsigned() ? value.get<double>() : -1;
    return found >= least && found <= kMostSize ? found : fail(key, "a plausible size");
  }
  [[nodiscard]] double number_or(std::string_view key, double otherwise, double least = 0) {
    return has(key) ? number(key, least) : otherwise;
  }
  // Counts the numbers i in the list `key` for which i < layers and i + 1 is a multiple of `step`.
  [[nodiscard]] double listed(std::string_view key, double layers, std::uint64_t step) {
    if (!has(key)) return 0;
    const auto list = json_u64_list(config_, key, what_);
    if (!list.ok()) status_ = list.status();
    if (!list.ok()) return 0;
    std::vector<std::uint64_t> found = *list;
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    return static_cast<double>(std::ranges::count_if(
        found, [&](auto i) { return static_cast<double>(i) < layers && (i + 1) % step == 0; }));
  }
  [[nodiscard]] const Status& status() const { return status_; }
  double fail(std::string_view key, std::string_view expected) {
    if (status_.ok()) {
      status_ = error(StatusCode::kCorrupt, what_, ": '", key, "': expected ", expected);
    }
    return 1;
  }

 private:
  const Json& config_;
  std::string_view what_;
  Status status_;
};

// The weights of a part of a layer: those in its matrices, and all.
struct LayerPart {
  double matrices = 0, weights = 0;
};

LayerPart grouped_attention(Fields& fields, const Family& family, double hidden) {
  const double heads = fields.number("num_attention_heads");
  const double kv_heads = fields.number_or("num_key_value_heads", heads, 1);
  const double head_size = fields.number_or("head_dim", hidden / heads, 1);
  const bool biased = fields.flag("attention_bias");
  const bool qk_norm = fields.flag("use_qk_norm", family.qk_norm);
  const double rows = (heads + 2 * kv_heads) * head_size;
  const double matrices = rows * hidden + hidden * heads * head_size;
  double weights = matrices;
  if (family.qkv_bias || biased) weights += rows;
  if (biased && family.model_type != "glm4_moe") weights += hidden;  // the output projection's bias
  return {matrices, weights + (qk_norm ? 2 * head_size : 0)};
}

LayerPart latent_attention(Fields& fields, double hidden) {
  const double heads = fields.number("num_attention_heads");
  const double rotary = fields.number("qk_rope_head_dim");
  const double plain = fields.number("qk_nope_head_dim");
  const double values = fields.number("v_head_dim");
  const double latent = fields.number("kv_lora_rank");
  const double query_rows = heads * (plain + rotary);
  double matrices =
      hidden * (latent + rotary) + latent * heads * (plain + values) + heads * values * hidden;
  double norms = latent;
  if (fields.has("q_lora_rank")) {
    const double rank = fields.number("q_lora_rank");
    matrices += hidden * rank + rank * query_rows;
    norms += rank;
  } else {
    matrices += hidden * query_rows;
  }
  return {matrices, matrices + norms};
}

double layers_with_experts(Fields& fields, const Family& family, double layers) {
  if (family.experts == Experts::kNone) {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (fields.number_or(key, 0) > 0) fields.fail(key, "none: this model_type has no experts");
    }
    return 0;
  }
  if (family.experts == Experts::kEveryLayer) return layers;
  if (family.experts == Experts::kAfterDense) {
    return layers - std::min(layers, fields.number_or("first_k_dense_replace", 0));
  }
  // Layer i has experts if (i + 1) is a multiple of the step and the layer is not listed as dense.
  const auto step = static_cast<std::uint64_t>(fields.number_or("decoder_sparse_step", 1, 1));
  const auto sparse = static_cast<double>(static_cast<std::uint64_t>(layers) / step);
  return sparse - fields.listed("mlp_only_layers", layers, step);
}

ModelShape count(Fields& fields, const Family& family) {
  const double hidden = fields.number("hidden_size");
  const double layers = fields.number("num_hidden_layers");
  const double gated = 3 * hidden;  // gate, up and down
  const LayerPart attention = family.latent_attention ? latent_attention(fields, hidden)
                                                      : grouped_attention(fields, family, hidden);
  const double sparse = layers_with_experts(fields, family, layers);
  const double inner = fields.number("intermediate_size");
  const double dense = gated * inner + (fields.flag("mlp_bias") ? 2 * inner + hidden : 0);
  double experts = 0, shared = 0, router = 0;  // per layer
  if (sparse > 0) {
    const double routed = fields.number(family.count_key);
    const double size = fields.number(family.expert_size_key);
    experts = routed * gated * size;
    router = routed * hidden + (family.router_bias ? routed : 0);
    shared = fields.number_or("n_shared_experts", 0) * gated * size;
  }
  const double tables = fields.flag("tie_word_embeddings") ? 1 : 2;
  const double weights = tables * fields.number("vocab_size") * hidden + hidden +
                         layers * (attention.weights + 2 * hidden) + (layers - sparse) * dense +
                         sparse * (experts + shared + router);
  // Embedding tables, norms, biases and routers stay in bfloat16 (docs/operate/quantized.md).
  const double matrices =
      layers * attention.matrices + (layers - sparse) * gated * inner + sparse * (experts + shared);
  if (!fields.status().ok() || weights > kMostWeights) return {};
  return {.family = std::string(family.model_type),
          .weights = static_cast<std::uint64_t>(weights),
          .experts = static_cast<std::uint64_t>(sparse * experts),
          .matrices = static_cast<std::uint64_t>(matrices),
          .layers = static_cast<std::uint64_t>(layers)};
}

}  // namespace

Result<ModelShape> model_shape(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json config, parse_json(text, what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string type, json_string(config, "model_type", what));
  const auto family = std::ranges::find(kFamilies, type, &Family::model_type);
  if (family == std::end(kFamilies)) {
    std::string known;
    for (const Family& each : kFamilies) known += concat(" ", each.model_type);
    return error(StatusCode::kUnsupported, what, ": the shapes of model_type ", shown(type),
                 " are not known; give the number of weights with --params. Known:", known);
  }
  Fields fields(config, what);
  ModelShape shape = count(fields, *family);
  DRIFTLESS_RETURN_IF_ERROR(fields.status());
  if (shape.weights > 0) return shape;
  return error(StatusCode::kCorrupt, what, ": its sizes make more than ", kMostWeights, " weights");
}

Result<ModelShape> model_shape(std::uint64_t weights) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Qwen3Shape shape, qwen3_shape(weights));
  const std::uint64_t heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const std::uint64_t layer = shape.hidden * (heads + 3 * shape.ffn);
  const double matrices =
      static_cast<double>(shape.layers * layer) / static_cast<double>(shape.params());
  return ModelShape{.family = "dense",
                    .weights = weights,
                    .experts = 0,
                    .matrices = static_cast<std::uint64_t>(matrices * static_cast<double>(weights)),
                    .layers = shape.layers};
}

}  // namespace driftless
