// SPDX-License-Identifier: Apache-2.0
#include "tools/qwen3_shape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace driftless {
namespace {

Qwen3Shape shape_of(std::uint64_t params) {
  const auto shape = qwen3_shape(params);
  EXPECT_TRUE(shape.ok()) << shape.status().to_string();
  return shape.ok() ? *shape : Qwen3Shape();
}

TEST(Qwen3Shape, HitsTheNumberOfParametersWithinThreePercent) {
  for (double wanted = 100'000; wanted < 1e12; wanted *= 1.03) {
    const auto params = static_cast<std::uint64_t>(wanted);
    const auto found = static_cast<double>(shape_of(params).params());
    ASSERT_LT(std::abs(found / wanted - 1), 0.03) << params;
  }
}

TEST(Qwen3Shape, IsAPlausibleModelAtEverySize) {
  for (double wanted = kMinQwen3Params; wanted < 1e12; wanted *= 1.05) {
    const Qwen3Shape shape = shape_of(static_cast<std::uint64_t>(wanted));
    ASSERT_GE(shape.layers, 1U);
    ASSERT_GE(shape.vocabulary, 64U);
    ASSERT_LE(shape.vocabulary, 151'936U);
    ASSERT_EQ(shape.hidden % 16, 0U);
    ASSERT_EQ(shape.ffn % 16, 0U);
    ASSERT_GE(shape.ffn, shape.hidden);
    ASSERT_EQ(shape.heads % shape.kv_heads, 0U);
  }
}

TEST(Qwen3Shape, RefusesWhatIsTooSmallOrTooLarge) {
  for (const std::uint64_t params :
       {std::uint64_t{0}, kMinQwen3Params - 1, kMaxQwen3Params + 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(qwen3_shape(params).status().code(), StatusCode::kInvalidArgument) << params;
  }
  EXPECT_TRUE(qwen3_shape(kMinQwen3Params).ok());
  EXPECT_TRUE(qwen3_shape(kMaxQwen3Params).ok());
}

TEST(Qwen3Tensors, HaveTheNamesAndShapesOfAQwen3) {
  const Qwen3Shape shape{.hidden = 32,
                         .layers = 2,
                         .ffn = 96,
                         .vocabulary = 100,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 16};
  const auto tensors = qwen3_tensors(shape);
  ASSERT_TRUE(tensors.ok());
  std::map<std::string, std::vector<std::uint64_t>> found;
  std::uint64_t elements = 0;
  for (const TensorSpec& spec : *tensors) {
    EXPECT_EQ(spec.dtype, DType::kBF16);
    found[spec.name] = spec.shape;
    elements += spec.units();
  }
  std::map<std::string, std::vector<std::uint64_t>> expected{
      {"model.embed_tokens.weight", {100, 32}},
      {"model.norm.weight", {32}},
      {"lm_head.weight", {100, 32}}};
  for (const std::string prefix : {"model.layers.0.", "model.layers.1."}) {
    expected[prefix + "input_layernorm.weight"] = {32};
    expected[prefix + "post_attention_layernorm.weight"] = {32};
    expected[prefix + "self_attn.q_proj.weight"] = {64, 32};
    expected[prefix + "self_attn.k_proj.weight"] = {32, 32};
    expected[prefix + "self_attn.v_proj.weight"] = {32, 32};
    expected[prefix + "self_attn.o_proj.weight"] = {32, 64};
    expected[prefix + "self_attn.q_norm.weight"] = {16};
    expected[prefix + "self_attn.k_norm.weight"] = {16};
    expected[prefix + "mlp.gate_proj.weight"] = {96, 32};
    expected[prefix + "mlp.up_proj.weight"] = {96, 32};
    expected[prefix + "mlp.down_proj.weight"] = {32, 96};
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(elements, shape.params());
}

TEST(Qwen3Config, HasTheSizes) {
  const Qwen3Shape shape = shape_of(1'000'000);
  const std::string text = qwen3_config_json(shape);
  for (const std::string& part :
       {std::string(R"("model_type": "qwen3")"), std::string(R"("Qwen3ForCausalLM")"),
        concat(R"("hidden_size": )", shape.hidden), concat(R"("vocab_size": )", shape.vocabulary),
        concat(R"("num_hidden_layers": )", shape.layers),
        concat(R"("intermediate_size": )", shape.ffn),
        concat(R"("num_key_value_heads": )", shape.kv_heads),
        std::string(R"("tie_word_embeddings": false)")}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace driftless
