// SPDX-License-Identifier: Apache-2.0
// PayloadFiles: makes the payload files of a delta, flush files or frames, from its changes, piece
// by piece. write_delta() writes them into a version; `driftless compare` and `driftless report`
// count their bytes.
#pragma once

#include <functional>

#include "core/file_system.h"
#include "formats/frame.h"
#include "kernels/tensor_ops.h"

namespace driftless {

struct PayloadFileOptions {
  FrameContext frame;  // run, version, base, layout, encoding; the files are rank 0's
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;  // size of a file before compression
  unsigned threads = 1;
  // Creates an empty file of the version.
  std::function<Result<std::unique_ptr<File>>(const std::string& name)> create;
};

// One thread at a time. After a failure only the destructor may be called.
class PayloadFiles {
 public:
  virtual ~PayloadFiles() = default;
  // Adds the next changes, ascending by tensor and origin; with old values if the encoding is
  // `compact`. The pair's new side must not change until finish().
  [[nodiscard]] virtual Status add(const DiffPiece& piece) = 0;
  // Writes and syncs all files. Returns the sum of their sizes.
  [[nodiscard]] virtual Result<std::uint64_t> finish() = 0;
};

// The layout outlives the files. A file holds one type. Memory: one buffer for each type; in
// `compact` also the changes of one tensor, if they are larger.
[[nodiscard]] std::unique_ptr<PayloadFiles> make_flush_files(const WeightLayout& layout,
                                                             PayloadFileOptions options);
// Changes that `compact` cannot code are written as `deltas`.
[[nodiscard]] std::unique_ptr<PayloadFiles> make_frame_files(const WeightLayout& layout,
                                                             PayloadFileOptions options);

}  // namespace driftless
