// SPDX-License-Identifier: Apache-2.0
// Applies the host kernels to whole tensors: divides them into pieces that fit into a core's cache,
// runs these on several threads, and keeps the results in order. Any number of units, also more
// than 2^32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/block_place.h"
#include "core/delta_view.h"
#include "core/digest.h"
#include "core/status.h"
#include "kernels/host_kernels.h"

namespace driftless {

struct TensorPair {
  std::uint32_t tensor = 0;  // copied into the views
  unsigned unit_bytes = 1;
  std::uint64_t units = 0;
  const std::byte* old_data = nullptr;
  const std::byte* new_data = nullptr;
  ValueCast cast = ValueCast::kNone;  // converts the new side: HostKernels::diff_cast()
};

// One compared piece: units [origin, origin + units) of `pair`, and the changes there (delta.origin
// is the piece's origin; delta may be empty).
struct DiffPiece {
  const TensorPair* pair = nullptr;
  std::uint64_t origin = 0;
  std::uint64_t units = 0;
  DeltaView delta;
  const std::byte* old_values = nullptr;  // in the order of delta.values; null unless requested
  bool lasting = false;  // whether the views stay valid after the call, as its caller documents
};

struct DiffOptions {
  unsigned threads = 1;
  std::uint64_t piece_bytes = std::uint64_t{2} << 20;  // of one side; bounds the memory per thread
  bool old_values = false;                             // pieces include the old values
};

// Compares every pair. Calls `in_parallel` (may be empty) for every piece on the thread that
// compared it, while the piece is still in the cache, in no particular order. Calls `in_order` for
// every piece that changed, one at a time, ascending by position in `pairs` and by origin. A piece
// of a large pair has `piece_bytes` of one side; each small pair is one piece (also a pair without
// units), and small pairs share tasks. Views are valid during the call only. Memory: (2 * threads +
// 2) * (4 + unit_bytes; with old values 4 + 2 * unit_bytes) * piece units, plus slack.
[[nodiscard]] Status diff_tensors(const HostKernels& kernels, std::span<const TensorPair> pairs,
                                  const DiffOptions& options,
                                  const std::function<Status(const DiffPiece&)>& in_parallel,
                                  const std::function<Status(const DiffPiece&)>& in_order);

// HostKernels::digest_change() for the changes of a block, which lies at `place` in its tensor.
// Positions of `delta` count in the block; `old_values` are in the order of its values.
[[nodiscard]] Digest digest_block_change(const HostKernels& kernels, const DigestTensorKey& key,
                                         const BlockPlace& place, const DeltaView& delta,
                                         const std::byte* old_values);

// The digest of a whole tensor.
[[nodiscard]] Digest digest_tensor(const HostKernels& kernels, const DigestTensorKey& key,
                                   std::span<const std::byte> bytes, unsigned threads);

}  // namespace driftless
