// SPDX-License-Identifier: Apache-2.0
// stage_version(): makes the new bytes of every changed tensor, chunk by chunk through all versions
// of a chain, compares them with the checksums, and passes their differences from the old bytes on
// as frames. The weights are only read.
#pragma once

#include "formats/checkpoint.h"
#include "plugin/targets/version_source.h"

namespace driftless {

using FrameSink = std::function<Status(std::span<const std::byte>)>;            // any thread
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;  // any thread

// How much of a tensor is held. If only some of it is held (a slice), the other bytes are
// undefined, and so is everything computed from them; its checksums cannot be compared.
enum class HeldShare : unsigned char { kNothing, kSome, kAll };

// The present weights: a checkpoint's files, or memory. Called from any thread.
struct WeightView {
  std::string name;  // for messages
  const WeightLayout* layout = nullptr;
  std::function<HeldShare(std::size_t tensor)> held;
  // Bytes of a held tensor, whole units: where they lie, or copied into `scratch`.
  std::function<Result<const std::byte*>(std::size_t tensor, std::uint64_t offset,
                                         std::span<std::byte> scratch)>
      bytes;
  // These bytes will not be needed soon. May be empty.
  std::function<void(std::size_t tensor, std::uint64_t offset, std::uint64_t size)> forget;
};
// The checkpoint outlives the view.
[[nodiscard]] WeightView view_of(const Checkpoint& checkpoint);

struct StageOptions {
  unsigned threads = 1;
  Progress progress;  // may be empty; counts bytes of touched tensors
};

struct StagedVersion {
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_units = 0;
  std::uint64_t touched_bytes = 0;
  Digest digest_change;  // digest after - digest before
  Digest new_digest;     // of the new bytes of all touched tensors, if the last version is full
};

// Passes frames to `sink` with all changes that `chain` makes to the weights, folded. The frames
// name the last version, on the base of the first one. kMismatch, naming the tensor, if its new
// bytes do not have the version's checksum: the delta is damaged, or the weights are not its base.
// Memory: a few megabytes and one frame per thread.
[[nodiscard]] Result<StagedVersion> stage_version(const WeightView& weights,
                                                  std::span<const VersionSource> chain,
                                                  const StageOptions& options,
                                                  const FrameSink& sink);

}  // namespace driftless
