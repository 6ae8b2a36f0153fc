// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/quantized_source.h"

#include <algorithm>
#include <deque>

#include "kernels/quantize_parts.h"
#include "plugin/checkpoint/quantization.h"
#include "plugin/publish/batch_memory.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

Result<QuantizedSource> QuantizedSource::make(const Checkpoint& weights, const WeightLayout& base,
                                              std::string companions_dir, const QuantizedAs& as,
                                              unsigned threads, unsigned stage, unsigned stages) {
  QuantizedSource source(weights);
  source.companions_dir_ = std::move(companions_dir);
  source.as_ = as;
  source.threads_ = threads;
  source.stage_ = stage_of(base, stage, stages);
  for (std::size_t i = 0; i < source.stage_.count; ++i) {
    source.tensors_.push_back(base[source.stage_.first + i]);
  }
  std::size_t made = 0;  // number of tensors of the base
  for (std::size_t from = 0; from < weights.layout().size(); ++from) {
    const TensorSpec& tensor = weights.layout()[from];
    DRIFTLESS_RETURN_IF_ERROR(source.add(base, tensor, from));
    const bool packed = as.int4_group > 0 && base.find(concat(tensor.name, kPackedSuffix));
    made += packed ? 3 : base.find(concat(tensor.name, kScaleSuffix)) ? 2 : 1;
  }
  if (made == base.size()) return source;
  for (const TensorSpec& tensor : base.tensors()) {
    const auto made_of = [&](std::string_view suffix) {
      return tensor.name.ends_with(suffix) &&
             weights.layout().find(tensor.name.substr(0, tensor.name.size() - suffix.size()));
    };
    if (made_of(kScaleSuffix) || made_of(kPackedSuffix) || made_of(kGroupScaleSuffix) ||
        made_of(kShapeSuffix) || weights.layout().find(tensor.name)) {
      continue;
    }
    return error(StatusCode::kWrongLayout, weights.path(), ": tensor '", tensor.name,
                 "' of the base is missing");
  }
  return error(StatusCode::kWrongLayout, weights.path(), ": does not have the tensors of the base");
}

Status QuantizedSource::add(const WeightLayout& base, const TensorSpec& tensor, std::size_t from) {
  const std::optional<std::uint32_t> packed = base.find(concat(tensor.name, kPackedSuffix));
  if (as_.int4_group > 0 && packed) return add_groups(base, tensor, *packed, from);
  const std::optional<std::uint32_t> at = base.find(tensor.name);
  if (!at) {
    return error(StatusCode::kWrongLayout, weights_->path(), ": tensor '", tensor.name,
                 "' is not in the base");
  }
  const std::optional<std::uint32_t> scales = base.find(concat(tensor.name, kScaleSuffix));
  const bool quantized = scales.has_value();
  const TensorSpec& there = base[*at];
  const bool fits =
      tensor.shape == there.shape && tensor.dtype == (quantized ? DType::kBF16 : there.dtype);
  if (!fits) {
    return error(StatusCode::kWrongLayout, weights_->path(), ": tensor '", tensor.name, "' is ",
                 info(tensor.dtype).name, " ", tensor.shape_string(), "; the base has ",
                 info(there.dtype).name, " ", there.shape_string(),
                 quantized ? " with scales: BF16 is expected" : " without scales");
  }
  Part part{from, {}, {}, {}, {}};
  (quantized ? part.codes : part.same) = number(*at);
  if (quantized) part.scales = number(*scales);
  if (part.same || part.codes || part.scales) parts_.push_back(part);
  return {};
}

Status QuantizedSource::add_groups(const WeightLayout& base, const TensorSpec& tensor,
                                   std::uint32_t packed, std::size_t from) {
  const std::uint64_t rows = base[packed].shape[0], columns = base[packed].shape[1] * kInt4InWord;
  if (tensor.dtype != DType::kBF16 || tensor.shape != std::vector<std::uint64_t>{rows, columns}) {
    return error(StatusCode::kWrongLayout, weights_->path(), ": tensor '", tensor.name, "' is ",
                 info(tensor.dtype).name, " ", tensor.shape_string(),
                 "; the base has codes of a matrix of ", rows, " rows and ", columns,
                 " columns: BF16 is expected");
  }
  const Part part{from,
                  {},
                  number(packed),
                  number(*base.find(concat(tensor.name, kGroupScaleSuffix))),
                  number(*base.find(concat(tensor.name, kShapeSuffix)))};
  if (part.codes || part.scales || part.shape) parts_.push_back(part);
  return {};
}

std::optional<std::size_t> QuantizedSource::number(std::size_t tensor) const {
  if (tensor < stage_.first || tensor - stage_.first >= stage_.count) return std::nullopt;
  return tensor - stage_.first;
}

Status QuantizedSource::visit(const std::function<Status(std::span<const OfferedTensor>)>& use) {
  BatchMemory made(kBatchBytes + BatchMemory::kSlack);
  std::vector<std::vector<std::byte>> shapes;
  std::vector<PartToQuantize> matrices;  // of the batch, in FP8
  std::deque<std::vector<std::uint16_t>> largest;
  std::vector<std::byte*> scales_at;
  std::vector<OfferedTensor> batch;
  std::uint64_t bytes = 0;
  const auto pass_on = [&]() -> Status {
    if (batch.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(quantize_parts(quantizer(), as_.rule, matrices, threads_));
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      write_fp8_scales(as_.rule, largest[i], scales_at[i]);
    }
    DRIFTLESS_RETURN_IF_ERROR(use(batch));
    made.reset();
    shapes.clear();
    matrices.clear();
    largest.clear();
    scales_at.clear();
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
    const unsigned group = as_.int4_group;
    const std::uint64_t code_bytes = group > 0 ? rows * columns / 2 : rows * columns;
    const std::uint64_t scale_bytes =
        group > 0 ? rows * columns / group * sizeof(std::uint16_t)
                  : quantize_blocks(rows) * quantize_blocks(columns) * sizeof(float);
    if (bytes + code_bytes + scale_bytes > kBatchBytes) DRIFTLESS_RETURN_IF_ERROR(pass_on());
    bytes += code_bytes + scale_bytes;
    std::byte* const codes = made.take(code_bytes);
    std::byte* const scales = made.take(scale_bytes);
    if (group > 0) {
      DRIFTLESS_RETURN_IF_ERROR(
          quantize_int4(quantizer(), group, weights.data, rows, columns, threads_, codes, scales));
    } else {
      largest.emplace_back(quantize_blocks(rows) * quantize_blocks(columns));
      matrices.push_back({{rows, columns, columns}, weights.data, largest.back().data(), codes});
      scales_at.push_back(scales);
    }
    if (part.codes) batch.push_back({*part.codes, codes});
    if (part.scales) batch.push_back({*part.scales, scales});
    if (!part.shape) continue;
    const DType of_shape = tensors_[*part.shape].dtype;
    batch.push_back(
        {*part.shape, shapes.emplace_back(int4_shape_bytes(*weights.spec, of_shape)).data()});
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
