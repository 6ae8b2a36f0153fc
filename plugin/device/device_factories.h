// SPDX-License-Identifier: Apache-2.0
// Factories for everything that runs on a GPU: memory for weights (plugin/targets/weight_memory.h),
// masked overwrites (plugin/targets/masked_device.h), and a publisher's comparisons
// (plugin/publish/publisher_device.h). Library driftless_device; includes no CUDA header.
//
// Staging runs on a stream of its own at the lowest priority, in launches of a fraction of a
// millisecond. commit() and undo() require, as for every target, that the weights are not in use
// meanwhile: the engine's queued work must be done (pause), and work that it queues after they
// return sees the new version.
//
// Buckets on the host, and those that go through maps, are copied while staging; others are used in
// place. A commit through maps has one launch per unit width and coding, and one wait.
//
// Device memory, beyond the weights and the parts that arrived there; all of it is kept for the
// next version:
//   blocks that a road fetched there (road.h, fetch_to_device())
//   buckets: the values twice (to take back, and to read back), 232 bytes for each tensor in each
//     bucket, 12 bytes for each 1024 changes, and the streams of buckets that arrived on the host
//   a sweep: 312 bytes for each map, and 4 for each 128 KiB
//   changes through maps: per changed unit 4 bytes, its width, and its width in the parameter; 256
//     bytes for each 16384 changes of a tensor and each map that they may lie in
//   a full version: 32 MiB
// Pinned memory: 16 MiB, and the tables of a version.
#pragma once

#include "plugin/publish/publisher_device.h"
#include "plugin/targets/masked_device.h"

namespace driftless {

[[nodiscard]] Result<std::shared_ptr<WeightMemory>> make_device_memory(int device);
// A version whose staging needs more device memory is refused (kNoSpace). 0: no limit.
[[nodiscard]] Result<std::shared_ptr<WeightMemory>> make_bounded_device_memory(
    int device, std::uint64_t max_staging_bytes);

[[nodiscard]] Result<std::unique_ptr<MaskedDevice>> make_masked_device(int device);

// kUnsupported if this process has no such GPU. Makes the device current on the calling thread,
// which must then open the publisher.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> make_publisher_device(
    const DeviceOptions& options);

}  // namespace driftless
