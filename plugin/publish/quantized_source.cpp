// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/quantized_source.h"

#include <algorithm>

#include "kernels/quantize.h"
#include "plugin/checkpoint/quantization.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

Result<QuantizedSource> QuantizedSource::make(const Checkpoint& weights, const WeightLayout& base,
                                              std::string companions_dir, QuantizeRule rule,
                                              unsigned threads, unsigned stage, unsigned stages) {
  QuantizedSource source(weights);
  source.companions_dir_ = std::move(companions_dir);
  source.rule_ = rule;
  source.threads_ = threads;
  source.own_ = stage_of(base, stage, stages);
  for (std::size_t i = 0; i < source.own_.count; ++i) {
    source.tensors_.push_back(base[source.own_.first + i]);
  }
  std::size_t made = 0;  // tensors of the base
  for (std::size_t from = 0; from < weights.layout().size(); ++from) {
    const TensorSpec& tensor = weights.layout()[from];
    DRIFTLESS_RETURN_IF_ERROR(source.add(base, tensor, from));
    made += base.find(concat(tensor.name, kScaleSuffix)) ? 2 : 1;
  }
  if (made == base.size()) return source;
  for (const TensorSpec& tensor : base.tensors()) {
    const bool scales = tensor.name.ends_with(kScaleSuffix);
    if (scales || weights.layout().find(tensor.name)) continue;
    return error(StatusCode::kWrongLayout, weights.path(), ": tensor '", tensor.name,
                 "' of the base is missing");
  }
  return error(StatusCode::kWrongLayout, weights.path(), ": has not the tensors of the base");
}

Status QuantizedSource::add(const WeightLayout& base, const TensorSpec& own, std::size_t from) {
  const std::optional<std::uint32_t> at = base.find(own.name);
  if (!at) {
    return error(StatusCode::kWrongLayout, weights_->path(), ": tensor '", own.name,
                 "' is not in the base");
  }
  const std::optional<std::uint32_t> scales = base.find(concat(own.name, kScaleSuffix));
  const bool quantized = scales.has_value();
  const TensorSpec& there = base[*at];
  const bool fits =
      own.shape == there.shape && own.dtype == (quantized ? DType::kBF16 : there.dtype);
  if (!fits) {
    return error(StatusCode::kWrongLayout, weights_->path(), ": tensor '", own.name, "' is ",
                 info(own.dtype).name, " ", own.shape_string(), "; the base has ",
                 info(there.dtype).name, " ", there.shape_string(),
                 quantized ? " with scales, which is made of BF16" : " without scales");
  }
  const auto number = [&](std::size_t tensor) -> std::optional<std::size_t> {
    if (tensor < own_.first || tensor - own_.first >= own_.count) return std::nullopt;
    return tensor - own_.first;
  };
  Part part{from, {}, {}, {}};
  (quantized ? part.codes : part.same) = number(*at);
  if (quantized) part.scales = number(*scales);
  if (part.same || part.codes || part.scales) parts_.push_back(part);
  return {};
}

Status QuantizedSource::visit(const std::function<Status(std::span<const OfferedTensor>)>& use) {
  std::vector<std::vector<std::byte>> made;
  std::vector<OfferedTensor> batch;
  std::uint64_t bytes = 0;
  const auto pass_on = [&]() -> Status {
    if (batch.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(use(batch));
    made.clear();
    batch.clear();
    bytes = 0;
    return {};
  };
  for (const Part& part : parts_) {
    const TensorView weights = weights_->tensor(part.from);
    if (part.same) {
      batch.push_back({*part.same, weights.data});
      continue;
    }
    const std::uint64_t rows = weights.spec->shape[0], columns = weights.spec->shape[1];
    const std::uint64_t scale_bytes =
        quantize_blocks(rows) * quantize_blocks(columns) * sizeof(float);
    if (bytes + rows * columns + scale_bytes > kBatchBytes) DRIFTLESS_RETURN_IF_ERROR(pass_on());
    bytes += rows * columns + scale_bytes;
    std::vector<std::byte>& codes = made.emplace_back(rows * columns);
    std::byte* const codes_at = codes.data();
    std::vector<std::byte>& scales = made.emplace_back(scale_bytes);
    DRIFTLESS_RETURN_IF_ERROR(quantize_fp8(quantizer(), rule_, weights.data, rows, columns,
                                           threads_, codes_at, scales.data()));
    if (part.codes) batch.push_back({*part.codes, codes_at});
    if (part.scales) batch.push_back({*part.scales, scales.data()});
  }
  return pass_on();
}

Result<Digest> digest_source(WeightSource& source, unsigned threads) {
  Digest sum;
  const std::span<const TensorSpec> tensors = source.tensors();
  DRIFTLESS_RETURN_IF_ERROR(source.visit([&](std::span<const OfferedTensor> batch) {
    std::vector<DigestTensorKey> keys;
    std::vector<TensorBytes> all;
    for (const OfferedTensor& each : batch) {
      keys.push_back(digest_tensor_key(tensors[each.tensor].name));
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      all.push_back({{0, {batch[i].data, tensors[batch[i].tensor].size_bytes}}, &keys[i]});
    }
    sum += digest_on_host(all, threads);
    return Status();
  }));
  return sum;
}

}  // namespace driftless
