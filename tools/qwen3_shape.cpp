// SPDX-License-Identifier: Apache-2.0
#include "tools/qwen3_shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace driftless {
namespace {

// A width, and the least number of layers for which it is used; from 1024 on as in the published
// models.
struct Width {
  Qwen3Shape shape;  // the fixed parts of the shape
  std::uint64_t min_layers;
};

constexpr Width kWidths[] = {
    {{.hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16}, 1},
    {{.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32}, 2},
    {{.hidden = 256, .heads = 4, .kv_heads = 2, .head_dim = 64}, 3},
    {{.hidden = 512, .heads = 8, .kv_heads = 4, .head_dim = 64}, 5},
    {{.hidden = 1024, .heads = 16, .kv_heads = 8, .head_dim = 128}, 8},
    {{.hidden = 2048, .heads = 16, .kv_heads = 8, .head_dim = 128}, 16},
    {{.hidden = 2560, .heads = 32, .kv_heads = 8, .head_dim = 128}, 24},
    {{.hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128}, 28},
    {{.hidden = 5120, .heads = 64, .kv_heads = 8, .head_dim = 128}, 36},
};
constexpr std::uint64_t kMaxVocabulary = 151'936;
constexpr std::uint64_t kMinVocabulary = 64;
constexpr std::uint64_t kFfnStep = 16;

std::uint64_t attention_params(const Qwen3Shape& shape) {
  const std::uint64_t projections = 2 * (shape.heads + shape.kv_heads) * shape.head_dim;
  return projections * shape.hidden + 2 * shape.head_dim + 2 * shape.hidden;
}

std::uint64_t layer_params(const Qwen3Shape& shape) {
  return attention_params(shape) + 3 * shape.hidden * shape.ffn;
}

// Gives a quarter of the parameters to the vocabulary, up to its real size.
Qwen3Shape of_width(const Width& width, std::uint64_t params) {
  Qwen3Shape shape = width.shape;
  shape.ffn = 3 * shape.hidden;
  shape.vocabulary = std::min(kMaxVocabulary, params / (8 * shape.hidden));
  const std::uint64_t embeddings = 2 * shape.vocabulary * shape.hidden;
  shape.layers = (params - embeddings) / layer_params(shape);
  return shape;
}

// Adds the parameters that do not make up a whole layer to the vocabulary, or, if that has its full
// size, to the ffn.
void fit(Qwen3Shape& shape, std::uint64_t params) {
  const std::uint64_t fixed = shape.hidden + shape.layers * layer_params(shape);
  const std::uint64_t rest = params > fixed ? params - fixed : 0;
  shape.vocabulary = std::clamp(rest / (2 * shape.hidden), kMinVocabulary, kMaxVocabulary);
  if (shape.vocabulary < kMaxVocabulary) return;
  const std::uint64_t others =
      shape.hidden + 2 * shape.vocabulary * shape.hidden + shape.layers * attention_params(shape);
  const std::uint64_t step = 3 * shape.hidden * shape.layers * kFfnStep;
  shape.ffn = std::max<std::uint64_t>(1, (params - others) / step) * kFfnStep;
}

Status add(std::vector<TensorSpec>& tensors, std::string name, std::vector<std::uint64_t> extents) {
  DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec,
                             TensorSpec::make(std::move(name), DType::kBF16, std::move(extents)));
  tensors.push_back(std::move(spec));
  return {};
}

Status add_layer(std::vector<TensorSpec>& tensors, const Qwen3Shape& shape, std::uint64_t layer) {
  const std::string prefix = concat("model.layers.", layer, ".");
  const std::uint64_t hidden = shape.hidden;
  const std::uint64_t query = shape.heads * shape.head_dim;
  const std::uint64_t key = shape.kv_heads * shape.head_dim;
  const std::pair<std::string_view, std::vector<std::uint64_t>> parts[] = {
      {"input_layernorm", {hidden}},          {"mlp.down_proj", {hidden, shape.ffn}},
      {"mlp.gate_proj", {shape.ffn, hidden}}, {"mlp.up_proj", {shape.ffn, hidden}},
      {"post_attention_layernorm", {hidden}}, {"self_attn.k_norm", {shape.head_dim}},
      {"self_attn.k_proj", {key, hidden}},    {"self_attn.o_proj", {hidden, query}},
      {"self_attn.q_norm", {shape.head_dim}}, {"self_attn.q_proj", {query, hidden}},
      {"self_attn.v_proj", {key, hidden}}};
  for (const auto& [name, extents] : parts) {
    DRIFTLESS_RETURN_IF_ERROR(add(tensors, concat(prefix, name, ".weight"), extents));
  }
  return {};
}

}  // namespace

std::uint64_t Qwen3Shape::params() const {
  return 2 * vocabulary * hidden + hidden + layers * layer_params(*this);
}

Result<Qwen3Shape> qwen3_shape(std::uint64_t params) {
  if (params < kMinQwen3Params || params > kMaxQwen3Params) {
    return error(StatusCode::kInvalidArgument, params, " parameters: expected between ",
                 kMinQwen3Params, " and ", kMaxQwen3Params);
  }
  Qwen3Shape shape = of_width(kWidths[0], params);
  for (const Width& width : kWidths) {
    const Qwen3Shape wider = of_width(width, params);
    if (wider.layers >= width.min_layers) shape = wider;
  }
  shape.layers = std::max<std::uint64_t>(shape.layers, 1);
  fit(shape, params);
  return shape;
}

Result<std::vector<TensorSpec>> qwen3_tensors(const Qwen3Shape& shape) {
  std::vector<TensorSpec> tensors;
  DRIFTLESS_RETURN_IF_ERROR(
      add(tensors, "model.embed_tokens.weight", {shape.vocabulary, shape.hidden}));
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
    DRIFTLESS_RETURN_IF_ERROR(add_layer(tensors, shape, layer));
  }
  DRIFTLESS_RETURN_IF_ERROR(add(tensors, "model.norm.weight", {shape.hidden}));
  DRIFTLESS_RETURN_IF_ERROR(add(tensors, "lm_head.weight", {shape.vocabulary, shape.hidden}));
  return tensors;
}

std::string qwen3_config_json(const Qwen3Shape& shape) {
  const nlohmann::ordered_json config = {
      {"architectures", {"Qwen3ForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"head_dim", shape.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", shape.hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", shape.ffn},
      {"max_position_embeddings", 40960},
      {"model_type", "qwen3"},
      {"num_attention_heads", shape.heads},
      {"num_hidden_layers", shape.layers},
      {"num_key_value_heads", shape.kv_heads},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 1000000},
      {"tie_word_embeddings", false},
      {"torch_dtype", "bfloat16"},
      {"use_cache", true},
      {"vocab_size", shape.vocabulary},
  };
  return config.dump(2) + "\n";
}

}  // namespace driftless
