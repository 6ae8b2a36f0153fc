#include "plugin/targets/dense_stretches.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint64_t kStretchBytes = std::uint64_t{4} << 20;

}  // namespace

void add_stretches(std::uint32_t tensor, std::uint64_t byte_offset,
                   std::span<const std::byte> bytes, std::vector<DenseStretch>& out) {
  while (!bytes.empty()) {
    const std::uint64_t size = std::min<std::uint64_t>(kStretchBytes, bytes.size());
    out.push_back({tensor, byte_offset, bytes.first(size)});
    bytes = bytes.subspan(size);
    byte_offset += size;
  }
}

std::vector<DenseStretch> stretches_of(const VersionSource& source) {
  std::vector<DenseStretch> stretches;
  for (const TensorChange& change : source.changes()) {
    for (const DensePiece& piece : source.dense(change)) {
      add_stretches(change.tensor, piece.byte_offset, piece.bytes, stretches);
    }
  }
  return stretches;
}

DenseSums sum_stretches(std::span<const DenseStretch> stretches, unsigned threads,
                        const std::function<const DigestTensorKey&(std::uint32_t)>& key,
                        const std::function<bool(std::uint32_t)>& held) {
  std::vector<DenseSums> sums(std::max(1U, threads));
  // Cannot fail: nothing in it returns an error or throws.
  const Status ignored =
      parallel_for(stretches.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        const DenseStretch& stretch = stretches[i];
        const Digest part =
            host_kernels().digest(key(stretch.tensor), stretch.byte_offset, stretch.bytes);
        sums[worker].all += part;
        if (held(stretch.tensor)) sums[worker].held += part;
        return {};
      });
  for (std::size_t i = 1; i < sums.size(); ++i) {
    sums[0].all += sums[i].all;
    sums[0].held += sums[i].held;
  }
  return sums[0];
}

Status check_digest(const DenseSums& sums, const Manifest& manifest) {
  if (sums.all == manifest.digest) return {};
  return error(StatusCode::kMismatch, "its weights have digest ", to_hex(sums.all),
               ", the manifest says ", to_hex(manifest.digest),
               ". Nothing was changed; publish another full version");
}

}  // namespace driftless
