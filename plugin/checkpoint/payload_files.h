// SPDX-License-Identifier: Apache-2.0
// PayloadFiles: the payload files of a delta, made from its changes piece by piece: flush files, or
// frames. write_delta() writes them into a version; `driftless compare` and `driftless report`
// count their bytes.
#pragma once

#include <functional>

#include "core/file_system.h"
#include "formats/frame.h"
#include "kernels/tensor_ops.h"

namespace driftless {

struct PayloadFileOptions {
  FrameContext frame;  // run, version, base, layout, encoding; files are those of rank 0
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;  // of a file, before compression
  unsigned threads = 1;
  // A new, empty file of the version.
  std::function<Result<std::unique_ptr<File>>(const std::string& name)> create;
};

// One thread at a time. After a failure only the destructor may be called.
class PayloadFiles {
 public:
  virtual ~PayloadFiles() = default;
  // The next changes: ascending by tensor and origin, with old values if the encoding is
  // `compact`. The pair's new side stays as it is until finish().
  [[nodiscard]] virtual Status add(const DiffPiece& piece) = 0;
  // All files are written and synced. Returns the sum of their sizes.
  [[nodiscard]] virtual Result<std::uint64_t> finish() = 0;
};

// The layout outlives them. Memory: one buffer and, in `compact`, the changes of a tensor that has
// more.
[[nodiscard]] std::unique_ptr<PayloadFiles> make_flush_files(const WeightLayout& layout,
                                                             PayloadFileOptions options);
// What `compact` cannot code goes as `deltas`.
[[nodiscard]] std::unique_ptr<PayloadFiles> make_frame_files(const WeightLayout& layout,
                                                             PayloadFileOptions options);

}  // namespace driftless
