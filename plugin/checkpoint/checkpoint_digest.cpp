// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_digest.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

struct Piece {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

}  // namespace

Digest digest_checkpoint(const Checkpoint& checkpoint, unsigned threads, const Progress& progress) {
  const WeightLayout& layout = checkpoint.layout();
  std::vector<Piece> pieces;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    const std::uint64_t size = layout[tensor].size_bytes;
    for (std::uint64_t at = 0; at < size; at += kPieceBytes) {
      pieces.push_back({tensor, at, std::min(kPieceBytes, size - at)});
    }
  }
  std::mutex mutex;
  Digest sum;
  std::uint64_t done = 0;
  // Cannot fail: the bytes are mapped, and nothing in it returns an error.
  const Status ignored =
      parallel_for(pieces.size(), threads, [&](std::size_t task, unsigned) -> Status {
        const Piece& piece = pieces[task];
        const Digest part = host_kernels().digest(
            digest_tensor_key(layout[piece.tensor].name), piece.offset,
            checkpoint.tensor(piece.tensor).bytes().subspan(piece.offset, piece.size));
        checkpoint.forget(piece.tensor, piece.offset, piece.size);
        const std::scoped_lock lock(mutex);
        sum += part;
        done += piece.size;
        if (progress) progress(done, layout.total_bytes());
        return {};
      });
  return sum;
}

}  // namespace driftless
