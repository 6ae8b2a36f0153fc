// SPDX-License-Identifier: Apache-2.0
// Where the elements of a registered tensor lie in the caller's memory: its strides, checked, and
// whether tensors have bytes in common.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "kernels/strided_map.h"
#include "plugin/c_abi/driftless.h"

namespace driftless::c_abi {

// From the tensor's units, in the order of its dimensions, to those of the memory at `data`. Plain
// where it is contiguous, and where there is none (DRIFTLESS_ABSENT: its strides say nothing).
// Errors name the stride: kInvalidArgument where elements share memory or reach past its end,
// kUnsupported for negative strides, and for any but contiguous memory of elements smaller than a
// byte.
[[nodiscard]] Result<StridedMap> map_elements(const driftless_tensor& tensor,
                                              const TensorSpec& spec);

struct PlacedTensor {
  std::string_view name;
  std::uintptr_t data = 0;
  unsigned unit_bytes = 1;
  const StridedMap* map = nullptr;  // as above; has units
};
// kInvalidArgument, naming two, where tensors have a byte in common. Exact: columns of one matrix
// interleave and are apart. Where they interleave without a common step, O(elements).
[[nodiscard]] Status check_apart(const std::vector<PlacedTensor>& tensors);

}  // namespace driftless::c_abi
