// SPDX-License-Identifier: Apache-2.0
#include "core/layout.h"

#include <algorithm>
#include <limits>

namespace driftless {
namespace {

constexpr std::size_t kMaxNameBytes = 4096;
constexpr std::uint64_t kMaxTensorBits = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxTotalBytes = std::numeric_limits<std::int64_t>::max();

}  // namespace

Status check_tensor_name(std::string_view name) {
  if (name.empty()) return error(StatusCode::kCorrupt, "a tensor's name is empty");
  if (name.size() > kMaxNameBytes) {
    return error(StatusCode::kCorrupt, "a tensor's name has ", name.size(), " bytes, at most ",
                 kMaxNameBytes, " are allowed: '", name.substr(0, 40), "...'");
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return error(StatusCode::kCorrupt, "a tensor's name holds the control character ",
                   static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return {};
}

Result<TensorSpec> TensorSpec::make(std::string name, DType dtype,
                                    std::vector<std::uint64_t> shape) {
  DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(name));
  std::uint64_t bits = info(dtype).bits;
  const bool empty = std::find(shape.begin(), shape.end(), 0U) != shape.end();
  for (const std::uint64_t extent : shape) {
    if (!empty && bits > kMaxTensorBits / extent) {
      return error(StatusCode::kCorrupt, "tensor '", name, "': the shape overflows 2^63 bits");
    }
    bits = empty ? 0 : bits * extent;
  }
  if (bits % 8 != 0) {
    return error(StatusCode::kCorrupt, "tensor '", name, "': ", bits, " bits of ", info(dtype).name,
                 " do not fill whole bytes");
  }
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  spec.size_bytes = bits / 8;
  return spec;
}

std::string TensorSpec::shape_string() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<WeightLayout> WeightLayout::make(std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  WeightLayout layout;
  std::string canonical;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    if (i > 0 && tensors[i - 1].name == tensor.name) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "' appears twice");
    }
    canonical += tensor.name;
    canonical += '\0';
    canonical += info(tensor.dtype).name;
    canonical += '\0';
    for (const std::uint64_t extent : tensor.shape) canonical += std::to_string(extent) + ",";
    canonical += '\n';
    if (tensor.size_bytes > kMaxTotalBytes - layout.total_bytes_) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name,
                   "': the tensors reach 2^63 bytes in all");
    }
    layout.total_bytes_ += tensor.size_bytes;
    layout.total_units_ += tensor.units();
  }
  layout.signature_ = xxh3_128(canonical);
  layout.tensors_ = std::move(tensors);
  return layout;
}

std::optional<std::uint32_t> WeightLayout::find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorSpec& tensor, std::string_view wanted) { return tensor.name < wanted; });
  if (at == tensors_.end() || at->name != name) return std::nullopt;
  return static_cast<std::uint32_t>(at - tensors_.begin());
}

Status WeightLayout::check_same(const WeightLayout& other, std::string_view ours,
                                std::string_view theirs) const {
  for (const TensorSpec& tensor : tensors_) {
    if (other.find(tensor.name)) continue;
    return error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is in ", ours,
                 " but not in ", theirs);
  }
  return check_has(other, ours, theirs);
}

Status WeightLayout::check_has(const WeightLayout& other, std::string_view ours,
                               std::string_view theirs) const {
  for (const TensorSpec& tensor : other.tensors_) {
    const std::optional<std::uint32_t> index = find(tensor.name);
    if (!index) {
      return error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is in ", theirs,
                   " but not in ", ours);
    }
    const TensorSpec& spec = tensors_[*index];
    if (spec.dtype != tensor.dtype || spec.shape != tensor.shape) {
      return error(StatusCode::kWrongLayout, "tensor '", tensor.name, "' is ",
                   info(spec.dtype).name, " ", spec.shape_string(), " in ", ours, " but ",
                   info(tensor.dtype).name, " ", tensor.shape_string(), " in ", theirs);
    }
  }
  return {};
}

}  // namespace driftless
