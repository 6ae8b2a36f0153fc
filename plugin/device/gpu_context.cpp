// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/gpu_context.h"

#include <algorithm>

namespace driftless {

Status GpuContext::reserve(GpuWorkspace& held, std::uint64_t dev_bytes, std::uint64_t host_bytes,
                           const std::string& what) {
  if (max_staging_bytes != 0 && dev_bytes > max_staging_bytes) {
    return error(StatusCode::kNoSpace, what, " takes ", dev_bytes,
                 " bytes of the GPU's memory, at most ", max_staging_bytes,
                 " are allowed; publish smaller versions, or fold fewer of them");
  }
  dev_bytes = std::max<std::uint64_t>(1, dev_bytes);
  host_bytes = std::max<std::uint64_t>(1, host_bytes);
  DRIFTLESS_RETURN_IF_ERROR(held.dev.reserve(dev_bytes, MemoryKind::kDevice).with_context(what));
  DRIFTLESS_RETURN_IF_ERROR(held.host.reserve(host_bytes, MemoryKind::kHost).with_context(what));
  staging.device_bytes = held.dev.size();
  staging.pinned_bytes = held.host.size() + uploader.pinned_bytes();
  return {};
}

WorkspaceLease::WorkspaceLease(std::shared_ptr<GpuContext> gpu)
    : gpu_(std::move(gpu)), held_(std::move(gpu_->workspace)) {}

WorkspaceLease::~WorkspaceLease() {
  // Where even waiting fails the device is lost, and with it what worked there.
  const OnDevice on(gpu_->device);
  static_cast<void>(on.status().ok() && gpu_->stream.wait().ok());
  if (held_.dev.size() >= gpu_->workspace.dev.size()) gpu_->workspace = std::move(held_);
}

}  // namespace driftless
