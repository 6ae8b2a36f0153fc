// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/abi_receiver.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/thread_gpu.h"
#include "plugin/c_abi/abi_call.h"
#include "plugin/targets/mapped_target.h"

namespace driftless::c_abi {
namespace {

constexpr std::uint32_t kMaxDims = 64;

Result<DType> dtype_of(const char* name) {
  Result<DType> dtype = parse_dtype(name);
  if (!dtype.ok()) dtype = parse_torch_dtype(name);
  if (dtype.ok()) return dtype;
  return error(StatusCode::kInvalidArgument, "dtype '", name,
               "': expected a name of safetensors (BF16, F32, ...) or torch (bfloat16, ...)");
}

Result<std::vector<std::uint64_t>> shape_of(const driftless_tensor& tensor) {
  if (tensor.dims > kMaxDims) {
    return error(StatusCode::kInvalidArgument, "dims is ", tensor.dims, ": at most ", kMaxDims);
  }
  std::vector<std::uint64_t> shape;
  if (tensor.dims > 0) DRIFTLESS_RETURN_IF_ERROR(check_not_null(tensor.shape, "shape"));
  for (std::uint32_t dim = 0; dim < tensor.dims; ++dim) {
    if (tensor.shape[dim] < 0) {
      return error(StatusCode::kInvalidArgument, "shape[", dim, "] is ", tensor.shape[dim]);
    }
    shape.push_back(static_cast<std::uint64_t>(tensor.shape[dim]));
  }
  return shape;
}

Result<TensorSpec> spec_of(const driftless_tensor& tensor) {
  DRIFTLESS_RETURN_IF_ERROR(check_not_null(tensor.dtype, "dtype"));
  DRIFTLESS_ASSIGN_OR_RETURN(const DType dtype, dtype_of(tensor.dtype));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> shape, shape_of(tensor));
  Result<TensorSpec> spec = TensorSpec::make(tensor.name, dtype, std::move(shape));
  if (!spec.ok()) return error(StatusCode::kInvalidArgument, spec.status().message());
  return spec;
}

Status check_data(const driftless_tensor& tensor, const TensorSpec& spec) {
  if (tensor.place == DRIFTLESS_ABSENT) {
    if (tensor.data == nullptr) return {};
    return error(StatusCode::kInvalidArgument, "place is DRIFTLESS_ABSENT, but data is not NULL");
  }
  if (tensor.data == nullptr && spec.size_bytes > 0) {
    return error(StatusCode::kInvalidArgument, "data is NULL, expected ", spec.size_bytes,
                 " bytes; place DRIFTLESS_ABSENT is for a tensor that is not held here");
  }
  const unsigned unit = unit_bytes(spec.dtype);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % unit == 0) return {};
  return error(StatusCode::kInvalidArgument, "data is not aligned to elements of ", unit, " bytes");
}

// --- where the elements of a tensor lie: checks its strides

std::vector<std::uint64_t> contiguous_strides(const std::vector<std::uint64_t>& shape) {
  std::vector<std::uint64_t> strides(shape.size());
  std::uint64_t next = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; next *= shape[dim]) strides[dim] = next;
  return strides;
}

// A dimension whose stride differs from that of contiguous memory. The stride of a dimension of one
// element has no meaning.
std::optional<std::size_t> find_strided(const driftless_tensor& tensor, const TensorSpec& spec) {
  if (tensor.strides == nullptr || tensor.place == DRIFTLESS_ABSENT || spec.size_bytes == 0) {
    return std::nullopt;
  }
  const std::vector<std::uint64_t> expected = contiguous_strides(spec.shape);
  for (std::size_t dim = spec.shape.size(); dim-- > 0;) {
    const std::int64_t stride = tensor.strides[dim];
    if (spec.shape[dim] == 1) continue;
    if (stride < 0 || static_cast<std::uint64_t>(stride) != expected[dim]) return dim;
  }
  return std::nullopt;
}

Status check_may_be_strided(const driftless_tensor& tensor, const TensorSpec& spec,
                            std::size_t dim) {
  if (info(spec.dtype).bits >= 8) return {};
  return error(StatusCode::kUnsupported, "strides[", dim, "] is ", tensor.strides[dim],
               ", expected ", contiguous_strides(spec.shape)[dim],
               ": elements smaller than a byte need contiguous memory; register contiguous "
               "memory");
}

// The distance of the last element from the first, in elements. With dimensions sorted by stride,
// each stride must exceed the reach of all smaller ones, as in every slice or transpose of
// contiguous memory.
Result<std::uint64_t> reach_of(const driftless_tensor& tensor, const TensorSpec& spec) {
  std::vector<std::pair<std::int64_t, std::size_t>> steps;
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    if (spec.shape[dim] == 1) continue;
    steps.emplace_back(tensor.strides[dim], dim);
    if (tensor.strides[dim] >= 0) continue;
    return error(StatusCode::kUnsupported, "strides[", dim, "] is ", tensor.strides[dim],
                 ": negative strides are not written through; register the view that is not "
                 "flipped");
  }
  std::sort(steps.begin(), steps.end());
  const auto address =
      static_cast<unsigned __int128>(reinterpret_cast<std::uintptr_t>(tensor.data));
  unsigned __int128 reach = 0;
  for (const auto& [stride, dim] : steps) {
    const auto step = static_cast<std::uint64_t>(stride);
    if (step <= reach) {
      return error(StatusCode::kInvalidArgument, "strides[", dim, "] is ", stride,
                   ", expected more than ", static_cast<std::uint64_t>(reach),
                   ", which the smaller strides reach: elements share memory (an expanded view?); "
                   "register memory in which each has its own");
    }
    reach += static_cast<unsigned __int128>(spec.shape[dim] - 1) * step;
    if ((address + (reach + 1) * unit_bytes(spec.dtype)) >> 62 == 0) continue;
    return error(StatusCode::kInvalidArgument, "strides[", dim, "] is ", stride, " over ",
                 spec.shape[dim], " elements: that reaches past the end of memory");
  }
  return static_cast<std::uint64_t>(reach);
}

// The map from the tensor's units, in the order of its dimensions, to the memory at `data`. Plain
// if it is contiguous or absent (DRIFTLESS_ABSENT: its strides have no meaning). Errors name the
// stride: kInvalidArgument if elements share memory or reach past its end, kUnsupported for
// negative strides, and for strided elements smaller than a byte.
Result<StridedMap> map_elements(const driftless_tensor& tensor, const TensorSpec& spec) {
  const std::optional<std::size_t> strided = find_strided(tensor, spec);
  if (!strided) return StridedMap::whole(spec.units());
  DRIFTLESS_RETURN_IF_ERROR(check_may_be_strided(tensor, spec, *strided));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t reach, reach_of(tensor, spec));
  const StridedView source{0, spec.shape, contiguous_strides(spec.shape)};
  const StridedView target{0, spec.shape, {tensor.strides, tensor.strides + tensor.dims}};
  Result<StridedMap> map = StridedMap::make(source, spec.units(), target, reach + 1);
  if (map.ok()) return map;  // the rest has too many dimensions
  return error(StatusCode::kUnsupported, "its strides: ", map.status().message(),
               "; register contiguous memory");
}

const char* place_name(int32_t place) { return place == DRIFTLESS_CUDA ? "GPU " : "the host "; }

}  // namespace

Status TensorSet::add(const driftless_tensor& tensor) {
  DRIFTLESS_RETURN_IF_ERROR(check_not_null(tensor.name, "name"));
  const auto checked = [&]() -> Result<Held> {
    DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec, spec_of(tensor));
    DRIFTLESS_ASSIGN_OR_RETURN(const StridedMap map, map_elements(tensor, spec));
    DRIFTLESS_RETURN_IF_ERROR(check_data(tensor, spec));
    if (tensors_.contains(spec.name)) {
      return error(StatusCode::kAlreadyExists, "it is registered already");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_place(tensor));
    return Held{std::move(spec), static_cast<std::byte*>(tensor.data), map};
  };
  Result<Held> held = checked();
  if (!held.ok()) return held.status().with_context(concat("tensor '", tensor.name, "'"));
  std::string name = held->spec.name;
  tensors_.emplace(std::move(name), std::move(*held));
  return {};
}

// All held tensors must lie in one memory, because they make up one target.
Status TensorSet::check_place(const driftless_tensor& tensor) {
  if (tensor.place == DRIFTLESS_ABSENT) return {};
  if (tensor.place != DRIFTLESS_HOST && tensor.place != DRIFTLESS_CUDA) {
    return error(StatusCode::kInvalidArgument, "place is ", tensor.place,
                 ": expected DRIFTLESS_HOST, DRIFTLESS_CUDA or DRIFTLESS_ABSENT");
  }
  const bool cuda = tensor.place == DRIFTLESS_CUDA;
  const int32_t number = cuda ? tensor.device : 0;
  if (first_ && (place_ != tensor.place || device_number_ != number)) {
    return error(StatusCode::kUnsupported, "it is on ", place_name(tensor.place), number, ", but '",
                 *first_, "' is on ", place_name(place_), device_number_,
                 ": open a receiver for each, with the tensors of the other DRIFTLESS_ABSENT");
  }
  if (cuda) {
    DRIFTLESS_ASSIGN_OR_RETURN(const DeviceTable* const device, device_table());
    const KeepThreadGpu keep;
    DRIFTLESS_RETURN_IF_ERROR(device->check(number));
    if (tensor.data != nullptr) {
      DRIFTLESS_RETURN_IF_ERROR(device->check_memory(tensor.data, number));
    }
    device_ = device;
    if (std::find(streams_.begin(), streams_.end(), tensor.stream) == streams_.end()) {
      streams_.push_back(tensor.stream);
    }
  }
  if (!first_) first_ = tensor.name;
  place_ = tensor.place;
  device_number_ = number;
  return {};
}

// If two tensors shared memory, writing one would change the other, and no version could be proven.
Status TensorSet::check() const {
  if (tensors_.empty()) return error(StatusCode::kInvalidArgument, "no tensor is registered");
  std::vector<PlacedMap> placed;
  std::vector<std::string_view> names;
  for (const auto& [name, held] : tensors_) {
    if (held.data == nullptr) continue;
    placed.push_back(
        {&held.map, reinterpret_cast<std::uintptr_t>(held.data), unit_bytes(held.spec.dtype)});
    names.push_back(name);
  }
  const auto met = find_meeting(placed, MapSide::kTarget);
  if (!met) return {};
  return error(StatusCode::kInvalidArgument, "tensors '", names[met->first], "' and '",
               names[met->second], "' share memory: register each with its own");
}

// Each held tensor is one map; absent ones have none, and the digest covers the held ones.
Result<std::unique_ptr<WeightTarget>> TensorSet::make_target(std::optional<VersionId> initial,
                                                             unsigned threads) const {
  DRIFTLESS_RETURN_IF_ERROR(check());
  std::vector<TensorSpec> specs;
  MappedParts parts;
  for (const auto& [name, held] : tensors_) {
    const auto tensor = static_cast<std::uint32_t>(specs.size());
    specs.push_back(held.spec);
    if (held.data == nullptr) continue;
    parts.maps.push_back(
        {tensor, held.data, unit_bytes(held.spec.dtype), held.map, ValueCast::kNone, {}});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(parts.layout, WeightLayout::make(std::move(specs)));
  if (device_ != nullptr) {
    DRIFTLESS_RETURN_IF_ERROR(wait_for_streams());
    DRIFTLESS_ASSIGN_OR_RETURN(parts.memory, device_->make_memory(device_number_));
  }
  MappedOptions options;
  options.initial = initial;
  options.digest_of_held = true;
  options.threads = threads;
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MappedTarget> target,
                             make_mapped_target(std::move(parts), options));
  return std::unique_ptr<WeightTarget>(std::move(target));
}

Status TensorSet::wait_for_streams() const {
  if (device_ == nullptr) return {};
  return device_->wait(device_number_, streams_);
}

}  // namespace driftless::c_abi
