// SPDX-License-Identifier: Apache-2.0
// sum_on_device(): the digest of bytes, worked out by the GPU.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/operations.h"
#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

constexpr std::uint64_t kSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uint64_t kSumsPlace = 256;  // keeps what follows aligned
constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
constexpr std::size_t kChunkPieces = 4096;  // small tensors: their table is bounded, too

// Sums pieces in device memory; waits for it.
class DeviceSum {
 public:
  DeviceSum(GpuContext& gpu, GpuWorkspace& workspace) : gpu_(gpu), workspace_(workspace) {}

  // Room for the sums of such pieces, after `before` bytes of device memory.
  Status reserve(std::span<const cuda::DigestPiece> pieces, std::uint64_t before) {
    const cuda::WorkspaceSize size = cuda::digest_workspace_size(pieces);
    at_ = before;
    return gpu_.reserve(workspace_, before + kSumsPlace + size.dev_bytes,
                        kSumsPlace + size.host_bytes, "summing the weights");
  }

  Status add(std::span<const cuda::DigestPiece> pieces) {
    if (pieces.empty()) return {};
    const std::span<std::byte> dev = workspace_.dev_bytes().subspan(at_);
    const std::span<std::byte> host = workspace_.host_bytes();
    const cuda::Workspace work{dev.data() + kSumsPlace, dev.size() - kSumsPlace,
                               host.data() + kSumsPlace, host.size() - kSumsPlace};
    DRIFTLESS_RETURN_IF_ERROR(cuda::digest(
        pieces, work, reinterpret_cast<std::uint64_t*>(dev.data()), gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.copy(host.data(), dev.data(), kSumsBytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());
    std::uint64_t sums[cuda::kDigestSums];
    std::memcpy(sums, host.data(), kSumsBytes);
    sum_ += cuda::digest_from_sums(sums);
    return {};
  }
  [[nodiscard]] const Digest& sum() const { return sum_; }

 private:
  GpuContext& gpu_;
  GpuWorkspace& workspace_;
  std::uint64_t at_ = 0;
  Digest sum_;
};

// Bytes on the host, which pass through a chunk at the workspace's begin.
class HostSweep {
 public:
  HostSweep(GpuContext& gpu, GpuWorkspace& workspace, DeviceSum& sum)
      : gpu_(gpu), workspace_(workspace), sum_(sum) {}

  Status reserve() {
    // More than any pieces of a chunk need: a piece of it takes a row for each 128 KiB, and two.
    const std::vector<cuda::DigestPiece> most(
        kChunkPieces, cuda::DigestPiece{nullptr, (std::uint64_t{2} << 17) + 1, 0, {}});
    return sum_.reserve(most, kChunkBytes);
  }

  Status add(const TensorBytes& bytes) {
    DensePiece rest = bytes.piece;
    while (!rest.bytes.empty()) {
      // The same place within 16 bytes as in the tensor: the fast case for the sweep.
      const std::uint64_t at = (used_ + 15) / 16 * 16 + rest.byte_offset % 16;
      if (pieces_.size() == kChunkPieces || at >= kChunkBytes) {
        DRIFTLESS_RETURN_IF_ERROR(flush());
        continue;
      }
      const auto some =
          rest.bytes.first(std::min<std::uint64_t>(rest.bytes.size(), kChunkBytes - at));
      std::byte* const there = workspace_.dev.data() + at;
      DRIFTLESS_RETURN_IF_ERROR(gpu_.uploader.copy(there, some, gpu_.stream));
      pieces_.push_back({there, some.size(), rest.byte_offset, *bytes.key});
      used_ = at + some.size();
      rest.byte_offset += some.size();
      rest.bytes = rest.bytes.subspan(some.size());
    }
    return {};
  }

  Status flush() {
    DRIFTLESS_RETURN_IF_ERROR(sum_.add(pieces_));
    pieces_.clear();
    used_ = 0;
    return {};
  }

 private:
  GpuContext& gpu_;
  GpuWorkspace& workspace_;
  DeviceSum& sum_;
  std::uint64_t used_ = 0;
  std::vector<cuda::DigestPiece> pieces_;
};

}  // namespace

Result<Digest> sum_on_device(const std::shared_ptr<GpuContext>& gpu,
                             std::span<const TensorBytes> bytes) {
  std::vector<cuda::DigestPiece> there;
  for (const auto& [piece, key] : bytes) {
    if (piece.memory != MemoryKind::kDevice) continue;
    there.push_back({piece.bytes.data(), piece.bytes.size(), piece.byte_offset, *key});
  }
  WorkspaceLease workspace(gpu);
  DeviceSum sum(*gpu, *workspace);
  if (!there.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(sum.reserve(there, 0));
    DRIFTLESS_RETURN_IF_ERROR(sum.add(there));
  }
  if (there.size() == bytes.size()) return sum.sum();
  HostSweep sweep(*gpu, *workspace, sum);
  DRIFTLESS_RETURN_IF_ERROR(sweep.reserve());
  for (const TensorBytes& each : bytes) {
    if (each.piece.memory == MemoryKind::kHost) DRIFTLESS_RETURN_IF_ERROR(sweep.add(each));
  }
  DRIFTLESS_RETURN_IF_ERROR(sweep.flush());
  return sum.sum();
}

}  // namespace driftless
