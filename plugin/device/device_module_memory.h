// A module's parameters in the memory of a GPU (plugin/targets/module_memory.h). Library
// driftless_device; includes no CUDA header.
//
// Staging runs on a stream of its own at the lowest priority, in launches of a fraction of a
// millisecond; a commit is one launch for each width of unit, and a wait. As for every target on a
// GPU, what the engine has queued must be done before a commit, and what it queues afterwards sees
// the new version.
//
// Memory of the GPU, held for the next version once it was taken: per changed unit 4 bytes and its
// width, and its width in the parameter again; 256 bytes for each 16384 changes of a tensor and
// each map that they may lie in.
#pragma once

#include <memory>

#include "core/status.h"
#include "plugin/targets/module_memory.h"

namespace driftless {

[[nodiscard]] Result<std::shared_ptr<ModuleMemory>> make_device_module_memory(int device);

}  // namespace driftless
