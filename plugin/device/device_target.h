// Weights in the memory of a GPU, as a receiver's target (weight_target.h). Library
// driftless_device; includes no CUDA header.
//
// Parts that lie in device memory are used where they are; parts on the host are copied up while
// staging. Everything runs on a stream of the target's own, at the lowest priority. commit() and
// undo() expect, as for every target, that nobody uses the weights meanwhile: what the engine has
// queued on its streams must be done (pause), and what it queues after they return sees the new
// version.
//
// Encodings: indices, deltas, deltas_zstd (inflated on the host) and full, in frames, hdf5, flush
// and full hf_delta versions. kUnsupported for xor and overwrite.
//
// Memory of the GPU beyond the weights and the parts that came there, held for the next version
// once it was taken: for staged deltas, the values once (to go back), 56 bytes for each tensor in
// each bucket and 12 for each 1024 changes, and the streams of buckets that came to the host; for a
// full version 32 MiB. Pinned memory: 16 MiB, and what a bucket's tables take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

struct DeviceTargetOptions {
  int device = 0;
  // What staging may take of the GPU's memory; a version that needs more is refused (kNoSpace). 0:
  // as much as there is.
  std::uint64_t max_staging_bytes = 0;
  unsigned threads = 0;  // for what is decoded on the host; 0: default_threads()
};

// Held for staging: it grows to what the largest version so far needed.
struct DeviceTargetMemory {
  std::uint64_t device_bytes = 0;
  std::uint64_t pinned_bytes = 0;
};

class DeviceTarget : public WeightTarget {
 public:
  [[nodiscard]] virtual DeviceTargetMemory staging_memory() const = 0;
  // Copies bytes of a held tensor to the host.
  [[nodiscard]] virtual Status read(std::size_t tensor, std::uint64_t byte_offset,
                                    std::span<std::byte> out) const = 0;
};

// `data_dev[i]` is tensor i of the layout in the device's memory, at a multiple of its unit,
// writable and owned by the caller; null where this process does not hold it, as for
// make_memory_target(). With `initial` the bytes there are that version: they are read once, and
// must be there already, since no other stream is waited for.
//
// One version is proven when it is staged; commit() proves it once more while it writes, so that
// weights that somebody else wrote into are found, and taken back. Of several versions the first is
// proven when staged, the others when committed, one after the other: all or nothing just the same.
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> make_device_target(
    const WeightLayout& layout, std::vector<std::byte*> data_dev, std::optional<VersionId> initial,
    const DeviceTargetOptions& options);
// The same in memory of its own, as make_owned_target().
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> make_owned_device_target(
    FileSystem& fs, const std::optional<std::string>& base, const DeviceTargetOptions& options);

}  // namespace driftless
