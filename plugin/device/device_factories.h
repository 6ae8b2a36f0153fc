// SPDX-License-Identifier: Apache-2.0
// What a GPU offers: memory for weights (plugin/targets/weight_memory.h), masked overwrites
// (plugin/targets/masked_device.h), and comparing a publisher's weights where they are
// (plugin/publish/publisher_device.h). Library driftless_device; includes no CUDA header.
//
// Staging runs on a stream of its own at the lowest priority, in launches of a fraction of a
// millisecond. commit() and undo() expect, as for every target, that nobody uses the weights
// meanwhile: what the engine has queued on its streams must be done (pause), and what it queues
// after they return sees the new version.
//
// Buckets that lie in device memory are used where they are; buckets on the host are copied up
// while staging. A commit through maps is one launch for each width of unit, and a wait.
//
// Memory of the GPU beyond the weights and the parts that came there, held for the next version
// once it was taken. For buckets: the values twice (to go back, and to read back), 88 bytes for
// each tensor in each bucket and 12 for each 1024 changes, and the streams of buckets that came to
// the host. For a sweep 312 bytes for each map and 4 for each 128 KiB. Through maps: per changed
// unit 4 bytes and its width, and its width in the parameter again; 256 bytes for each 16384
// changes of a tensor and each map that they may lie in. For a full version 32 MiB. Pinned memory:
// 16 MiB, and what the tables of a version take.
#pragma once

#include "plugin/publish/publisher_device.h"
#include "plugin/targets/masked_device.h"

namespace driftless {

[[nodiscard]] Result<std::shared_ptr<WeightMemory>> make_device_memory(int device);
// A version whose staging needs more of the GPU's memory is refused (kNoSpace). 0: no bound.
[[nodiscard]] Result<std::shared_ptr<WeightMemory>> make_bounded_device_memory(
    int device, std::uint64_t max_staging_bytes);

[[nodiscard]] Result<std::unique_ptr<MaskedDevice>> make_masked_device(int device);

// kUnsupported if this process has no such GPU. The device becomes current on the caller's thread,
// which is the publisher's.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> make_publisher_device(
    const DeviceOptions& options);

}  // namespace driftless
