// SPDX-License-Identifier: Apache-2.0
// Part of the patchers: makes sure that chunks adjoin and cover the tensor, and that none is
// touched after a failure.
#pragma once

#include <cstdint>
#include <string>

#include "core/layout.h"
#include "core/status.h"

namespace driftless {

class ChunkOrder {
 public:
  explicit ChunkOrder(const TensorSpec& tensor)
      : name_(tensor.name), size_bytes_(tensor.size_bytes) {}

  [[nodiscard]] Status advance(std::uint64_t byte_offset, std::uint64_t chunk_bytes) {
    DRIFTLESS_RETURN_IF_ERROR(failure_);
    if (byte_offset != next_ || chunk_bytes > size_bytes_ - next_) {
      return error(StatusCode::kInternal, "tensor '", name_, "': a chunk of ", chunk_bytes,
                   " bytes at ", byte_offset, ", expected one at ", next_, " of ", size_bytes_);
    }
    if (chunk_bytes % 8 != 0 && byte_offset + chunk_bytes != size_bytes_) {
      return error(StatusCode::kInternal, "tensor '", name_, "': a chunk of ", chunk_bytes,
                   " bytes before the last one is not a multiple of 8");
    }
    next_ += chunk_bytes;
    return {};
  }

  // Keeps and returns a failure, so that no chunk is touched after it.
  [[nodiscard]] Status fail(const Status& status) {
    if (failure_.ok()) failure_ = status.with_context(context());
    return failure_;
  }

  [[nodiscard]] Status finish() const {
    DRIFTLESS_RETURN_IF_ERROR(failure_);
    if (next_ == size_bytes_) return {};
    return error(StatusCode::kInternal, "tensor '", name_, "': only ", next_, " of ", size_bytes_,
                 " bytes were patched");
  }

  [[nodiscard]] std::string context() const { return "tensor '" + name_ + "'"; }

 private:
  std::string name_;
  std::uint64_t size_bytes_;
  std::uint64_t next_ = 0;
  Status failure_;
};

}  // namespace driftless
