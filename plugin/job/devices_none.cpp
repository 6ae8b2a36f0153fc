// SPDX-License-Identifier: Apache-2.0
// devices.h where CUDA is not in the build.
#include "plugin/job/devices.h"

namespace driftless {
namespace {

Status no_cuda(std::string_view key) {
  return error(StatusCode::kUnsupported, key,
               ": cuda is not in this build: ", DRIFTLESS_WHY_NOT_CUDA);
}

}  // namespace

Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config, MemoryKind weights) {
  if (!on_gpu(config, weights)) return std::shared_ptr<PublisherDevice>();
  return no_cuda(concat("snapshot: ", to_string(config.gpu.snapshot)));
}

Result<std::shared_ptr<WeightMemory>> make_device_memory(int) {
  return no_cuda("parameters on a GPU");
}

Result<std::unique_ptr<MaskedDevice>> make_masked_device(int) {
  return no_cuda("parameters on a GPU");
}

}  // namespace driftless
