// SPDX-License-Identifier: Apache-2.0
// Small checkpoints for tests: made, changed, copied, compared.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

namespace driftless::testing {

struct TestTensor {
  DType dtype = DType::kBF16;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};
using Weights = std::map<std::string, TestTensor>;

inline TestTensor random_tensor(DType dtype, std::vector<std::uint64_t> shape,
                                std::mt19937_64& random) {
  TestTensor tensor{dtype, shape, {}};
  const auto spec = TensorSpec::make("t", dtype, std::move(shape));
  tensor.bytes.resize(spec->size_bytes);
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
  return tensor;
}

// A few tensors of several widths: matrices, a vector, one byte-wide, one empty.
inline Weights random_weights(std::uint64_t seed, std::uint64_t rows = 64) {
  std::mt19937_64 random(seed);
  Weights weights;
  weights["model.embed.weight"] = random_tensor(DType::kBF16, {rows * 4, 48}, random);
  weights["model.layers.0.up.weight"] = random_tensor(DType::kBF16, {rows, 96}, random);
  weights["model.layers.0.norm.weight"] = random_tensor(DType::kF32, {37}, random);
  weights["model.layers.0.scale"] = random_tensor(DType::kF8E4M3, {rows, 31}, random);
  weights["model.layers.0.counter"] = random_tensor(DType::kI64, {5}, random);
  weights["model.empty"] = random_tensor(DType::kF16, {0, 8}, random);
  weights["model.norm.weight"] = random_tensor(DType::kBF16, {96}, random);
  return weights;
}

// Changes the bits of about `share` of the bytes, except in tensors whose name contains `keep`.
inline Weights changed_weights(Weights weights, std::uint64_t seed, double share,
                               const std::string& keep = "model.norm") {
  std::mt19937_64 random(seed);
  for (auto& [name, tensor] : weights) {
    if (name.find(keep) != std::string::npos || tensor.bytes.empty()) continue;
    const auto flips =
        static_cast<std::uint64_t>(share * static_cast<double>(tensor.bytes.size())) + 1;
    for (std::uint64_t i = 0; i < flips; ++i) {
      tensor.bytes[random() % tensor.bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
  }
  return weights;
}

// Raises about every sixteenth bfloat16 by one ULP, within its exponent, as optimizers do.
inline Weights stepped_weights(Weights weights, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& [name, tensor] : weights) {
    if (tensor.dtype != DType::kBF16) continue;
    for (std::size_t at = 0; at < tensor.bytes.size(); at += 2) {
      const bool last = (tensor.bytes[at] & std::byte{0x7f}) == std::byte{0x7f};
      if (random() % 16 != 0 || last) continue;
      tensor.bytes[at] = static_cast<std::byte>(std::to_integer<unsigned>(tensor.bytes[at]) + 1);
    }
  }
  return weights;
}

inline void write_shard(const std::string& path, const Weights& weights) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights) names.push_back(name);
  auto writer = SafetensorsWriter::create(
      posix_file_system(), path, SafetensorsWriter::header_bytes_for(names, 4, {{"format", "pt"}}));
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  ASSERT_TRUE(writer->add_metadata("format", "pt").ok());
  for (const auto& [name, tensor] : weights) {
    ASSERT_TRUE(writer->begin_tensor(name, tensor.dtype).ok());
    ASSERT_TRUE(writer->append(tensor.bytes).ok());
    ASSERT_TRUE(writer->end_tensor(tensor.shape).ok());
  }
  const auto size = writer->finish();
  ASSERT_TRUE(size.ok()) << size.status().to_string();
}

// An HF checkpoint directory; with two shards and an index where `shards` is 2.
inline void write_checkpoint(const std::string& directory, const Weights& weights, int shards = 1) {
  std::filesystem::create_directories(directory);
  if (shards == 1) {
    write_shard(directory + "/model.safetensors", weights);
    return;
  }
  std::vector<Weights> parts(static_cast<std::size_t>(shards));
  std::string map;
  std::size_t next = 0;
  for (const auto& [name, tensor] : weights) {
    const std::size_t part = next++ % parts.size();
    parts[part][name] = tensor;
    map += concat(map.empty() ? "" : ",", "\"", name, "\":\"model-0000", part + 1, "-of-0000",
                  shards, ".safetensors\"");
  }
  for (std::size_t part = 0; part < parts.size(); ++part) {
    write_shard(concat(directory, "/model-0000", part + 1, "-of-0000", shards, ".safetensors"),
                parts[part]);
  }
  ASSERT_TRUE(write_text(posix_file_system(), directory + "/model.safetensors.index.json",
                         concat("{\"metadata\":{},\"weight_map\":{", map, "}}"))
                  .ok());
}

inline void copy_directory(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

// Whether the checkpoint holds exactly these weights.
[[nodiscard]] inline bool holds(const std::string& directory, const Weights& weights) {
  const auto checkpoint = Checkpoint::open(posix_file_system(), directory);
  if (!checkpoint.ok() || checkpoint->layout().size() != weights.size()) return false;
  for (std::size_t i = 0; i < checkpoint->layout().size(); ++i) {
    const TensorView view = checkpoint->tensor(i);
    const auto found = weights.find(view.spec->name);
    if (found == weights.end()) return false;
    const auto bytes = view.bytes();
    if (!std::equal(bytes.begin(), bytes.end(), found->second.bytes.begin(),
                    found->second.bytes.end())) {
      return false;
    }
  }
  return true;
}

}  // namespace driftless::testing
