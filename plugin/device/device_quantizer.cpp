// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_quantizer.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/quantize.h"

namespace driftless {
namespace {

// Codes have the stride of the weights.
std::uint64_t code_bytes(const MatrixPart& part) {
  const bool none = part.rows == 0 || part.columns == 0;
  return none ? 0 : (part.rows - 1) * part.stride + part.columns;
}

}  // namespace

Status DeviceQuantizer::quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes, bool coded,
                                 const DeviceStream& stream) {
  std::uint64_t blocks = 0, bytes = 0;
  for (const DeviceMatrix& box : boxes) {
    blocks += box.largest.size();
    if (coded) bytes += device_aligned(code_bytes(box.part));
  }
  if (blocks == 0) return {};
  const std::uint64_t of_blocks = blocks * sizeof(std::uint16_t);
  if (bytes > 0) DRIFTLESS_RETURN_IF_ERROR(codes_.reserve(bytes, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(largest_dev_.reserve(of_blocks, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(largest_.reserve(of_blocks, MemoryKind::kHost));
  auto* const largest = reinterpret_cast<std::uint16_t*>(largest_.data());
  auto* const largest_dev = reinterpret_cast<std::uint16_t*>(largest_dev_.data());
  std::vector<cuda::QuantizePart> parts;
  std::uint64_t block = 0, at = 0;
  for (DeviceMatrix& box : boxes) {
    std::ranges::copy(box.largest, largest + block);
    std::byte* const codes = coded ? codes_.data() + at : nullptr;
    box.codes = codes;
    parts.push_back({box.part, box.weights, largest_dev + block, codes});
    block += box.largest.size();
    if (coded) at += device_aligned(code_bytes(box.part));
  }
  const cuda::WorkspaceSize size = cuda::quantize_workspace_size(parts);
  DRIFTLESS_RETURN_IF_ERROR(work_.dev.reserve(size.dev_bytes, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(work_.host.reserve(size.host_bytes, MemoryKind::kHost));
  DRIFTLESS_RETURN_IF_ERROR(stream.copy(largest_dev, largest, of_blocks));
  DRIFTLESS_RETURN_IF_ERROR(cuda::quantize(rule, parts, work_.get(), stream.get()));
  DRIFTLESS_RETURN_IF_ERROR(stream.copy(largest, largest_dev, of_blocks));
  DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  block = 0;
  for (const DeviceMatrix& box : boxes) {
    std::copy_n(largest + block, box.largest.size(), box.largest.begin());
    block += box.largest.size();
  }
  return {};
}

Status DeviceQuantizer::quantize_groups(unsigned group, std::span<DeviceGroups> boxes,
                                        const DeviceStream& stream) {
  const auto packed_bytes = [group](const DeviceGroups& box) { return box.groups * group / 2; };
  const auto scale_bytes = [](const DeviceGroups& box) {
    return box.groups * sizeof(std::uint16_t);
  };
  std::uint64_t bytes = 0;
  for (const DeviceGroups& box : boxes) {
    bytes += device_aligned(packed_bytes(box)) + device_aligned(scale_bytes(box));
  }
  if (bytes == 0) return {};
  DRIFTLESS_RETURN_IF_ERROR(codes_.reserve(bytes, MemoryKind::kDevice));
  std::byte* at = codes_.data();
  for (DeviceGroups& box : boxes) {
    std::byte* const packed = at;
    std::byte* const scales = packed + device_aligned(packed_bytes(box));
    at = scales + device_aligned(scale_bytes(box));
    box.packed = packed;
    box.scales = scales;
    DRIFTLESS_RETURN_IF_ERROR(
        cuda::quantize_groups(group, box.groups, box.weights, packed, scales, stream.get()));
  }
  return stream.wait();
}

}  // namespace driftless
