// Staging: everything that applying a version needs to know is worked out and proven before the
// checkpoint is touched. The new bytes of every changed tensor are made chunk by chunk, summed, and
// compared with the old ones; what differs goes into frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/digest.h"
#include "core/status.h"
#include "formats/checkpoint.h"
#include "formats/version_dir.h"
#include "plugin/version_source.h"

namespace driftless {

using FrameSink = std::function<Status(std::span<const std::byte>)>;            // any thread
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;  // any thread

struct StageOptions {
  unsigned threads = 1;
  std::uint64_t frame_bytes = std::uint64_t{4} << 20;
  Progress progress;  // may be empty; counts bytes of touched tensors
};

struct StagedVersion {
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_units = 0;
  std::uint64_t touched_bytes = 0;
  Digest digest_change;  // digest after - digest before
};

// Passes frames that take `checkpoint` to the version to `sink` (may be empty: then only the checks
// are made). Fails with kMismatch naming the tensor where its new bytes do not have the checksum
// that the version says: then either the delta is damaged, or the checkpoint is not its base.
// Memory: a few megabytes and one frame per thread.
[[nodiscard]] Result<StagedVersion> stage_version(const Checkpoint& checkpoint,
                                                  const VersionDirectory& version,
                                                  const VersionSource& source,
                                                  const StageOptions& options,
                                                  const FrameSink& sink);

}  // namespace driftless
