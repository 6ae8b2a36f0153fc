// SPDX-License-Identifier: Apache-2.0
#include "core/block.h"

#include <algorithm>
#include <set>

namespace driftless {
namespace {

// The tensor's shape in units: in the last dimension several packed elements make one unit. Returns
// nothing if a row of packed elements does not fill its last byte.
std::optional<std::vector<std::uint64_t>> shape_in_units(const TensorSpec& tensor) {
  std::vector<std::uint64_t> shape = tensor.shape;
  const unsigned bits = info(tensor.dtype).bits;
  if (bits >= 8 || shape.empty()) return shape;
  if (shape.back() * bits % 8 != 0) return std::nullopt;
  shape.back() = shape.back() * bits / 8;
  return shape;
}

Status check_inside(const TensorSpec& tensor, const TensorBox& box) {
  if (box.offsets.size() != box.sizes.size() || box.sizes.size() != tensor.shape.size()) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': a block of ", box.sizes.size(),
                 " dimensions, the tensor has ", tensor.shape.size());
  }
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    const std::uint64_t length = tensor.shape[d];
    if (box.sizes[d] > 0 && box.offsets[d] < length && box.sizes[d] <= length - box.offsets[d]) {
      continue;
    }
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': a block has ", box.sizes[d],
                 " elements from offset ", box.offsets[d], " in dimension ", d,
                 ", expected one or more inside its length ", length);
  }
  return {};
}

std::string place_name(const TensorSpec& tensor, const std::vector<std::uint64_t>& at) {
  std::string text = concat("tensor '", tensor.name, "' at [");
  for (std::size_t d = 0; d < at.size(); ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(at[d]);
  }
  return text + "]";
}

bool has(const TensorBox& box, const std::vector<std::uint64_t>& at) {
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (at[d] < box.offsets[d] || at[d] - box.offsets[d] >= box.sizes[d]) return false;
  }
  return true;
}

// The first element, in row-major order, that lies in no box: each of its coordinates is 0 or the
// end of a box.
std::vector<std::uint64_t> first_hole(const TensorSpec& tensor, std::span<const TensorBox> boxes) {
  const std::size_t dims = tensor.shape.size();
  std::vector<std::set<std::uint64_t>> ends(dims);
  for (std::size_t d = 0; d < dims; ++d) {
    ends[d].insert(0);
    for (const TensorBox& box : boxes) {
      const std::uint64_t end = box.offsets[d] + box.sizes[d];
      if (end < tensor.shape[d]) ends[d].insert(end);
    }
  }
  std::vector<std::set<std::uint64_t>::const_iterator> next;
  for (const auto& each : ends) next.push_back(each.begin());
  while (true) {
    std::vector<std::uint64_t> at;
    for (const auto& each : next) at.push_back(*each);
    if (std::ranges::none_of(boxes, [&](const TensorBox& box) { return has(box, at); })) return at;
    std::size_t d = dims;
    while (d > 0 && ++next[d - 1] == ends[d - 1].end()) {
      next[d - 1] = ends[d - 1].begin();
      --d;
    }
    if (d == 0) return at;  // there is none
  }
}

}  // namespace

std::string TensorBox::to_string() const {
  if (whole()) return "all";
  std::string text = "[";
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    text += concat(d > 0 ? ", " : "", offsets[d], ":", offsets[d] + sizes[d]);
  }
  return text + "]";
}

Result<BlockPlace> place_of(const TensorSpec& tensor, const TensorBox& box) {
  if (box.whole()) return BlockPlace::all(tensor.units());
  DRIFTLESS_RETURN_IF_ERROR(check_inside(tensor, box));
  const std::optional<std::vector<std::uint64_t>> shape = shape_in_units(tensor);
  const unsigned bits = info(tensor.dtype).bits;
  std::vector<std::uint64_t> offsets = box.offsets, sizes = box.sizes;
  if (bits < 8) {
    if (!shape || offsets.back() * bits % 8 != 0 || sizes.back() * bits % 8 != 0) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': block ", box.to_string(),
                   " cuts a byte of ", info(tensor.dtype).name);
    }
    offsets.back() = offsets.back() * bits / 8;
    sizes.back() = sizes.back() * bits / 8;
  }
  BlockPlace place;
  place.units = 1;
  std::uint64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    place.units *= sizes[d];
    place.first += offsets[d] * stride;
    if (place.dims == 0 && place.run == stride) {
      place.run *= sizes[d];
    } else if (sizes[d] > 1) {
      // place.dim has ascending strides in this loop; it is reversed at the end.
      BlockPlace::Dim* const outer = place.dims > 0 ? &place.dim[place.dims - 1] : nullptr;
      if (outer != nullptr && outer->size * outer->stride == stride) {
        outer->size *= sizes[d];
      } else if (place.dims == BlockPlace::kMaxDims) {
        return error(StatusCode::kUnsupported, "tensor '", tensor.name, "': block ",
                     box.to_string(), " is cut along more than ", BlockPlace::kMaxDims,
                     " dimensions");
      } else {
        place.dim[place.dims++] = {sizes[d], stride};
      }
    }
    stride *= (*shape)[d];
  }
  std::reverse(place.dim, place.dim + place.dims);
  return place;
}

Result<TensorBlock> TensorBlock::make(std::uint32_t tensor, const TensorSpec& spec, TensorBox box) {
  DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(spec, box));
  if (place.units == spec.units()) {
    return error(StatusCode::kCorrupt, "tensor '", spec.name, "': block ", box.to_string(),
                 " covers the whole tensor; expected a part of it");
  }
  return TensorBlock{tensor, std::move(box), place};
}

bool overlap(const TensorBox& a, const TensorBox& b) {
  if (a.whole() || b.whole()) return true;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) {
      return false;
    }
  }
  return true;
}

Status check_covers(const TensorSpec& tensor, std::span<const TensorBox> boxes) {
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(tensor, boxes[i]));
    units += place.units;
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(boxes[i], boxes[j])) continue;
      std::vector<std::uint64_t> at(tensor.shape.size());
      for (std::size_t d = 0; d < at.size(); ++d) {
        at[d] = std::max(boxes[i].whole() ? 0 : boxes[i].offsets[d],
                         boxes[j].whole() ? 0 : boxes[j].offsets[d]);
      }
      return error(StatusCode::kInvalidArgument, place_name(tensor, at), " is in two blocks, ",
                   boxes[j].to_string(), " and ", boxes[i].to_string());
    }
  }
  if (units == tensor.units()) return {};
  return error(StatusCode::kInvalidArgument, place_name(tensor, first_hole(tensor, boxes)),
               " is in none of the ", boxes.size(), " blocks");
}

}  // namespace driftless
