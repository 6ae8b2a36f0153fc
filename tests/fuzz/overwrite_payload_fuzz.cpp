// SPDX-License-Identifier: Apache-2.0
// Input: an `overwrite` payload for a tensor of 2000 bytes.
#include <cstdint>
#include <cstdlib>

#include "formats/tensor_patcher.h"
#include "support/golden_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  const TensorSpec tensor = testing::golden_tensor();
  auto patcher = make_overwrite_patcher(tensor, std::as_bytes(std::span(data, size)));
  if (!patcher.ok()) return 0;
  testing::Bytes bytes(tensor.size_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 400) {
    // Further chunks are offered after a failure too: none of them may be touched.
    const Status status = (*patcher)->patch(at, std::span(bytes).subspan(at, 400));
    if (!status.ok() && (*patcher)->finish().ok()) std::abort();
  }
  (void)(*patcher)->finish().ok();
  return 0;
}
