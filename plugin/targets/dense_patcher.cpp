// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/dense_patcher.h"

#include <algorithm>

namespace driftless {
namespace {

class DensePatcher final : public TensorPatcher {
 public:
  DensePatcher(const TensorSpec& tensor, std::span<const DensePiece> pieces)
      : TensorPatcher(tensor), pieces_(pieces) {}

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    while (!chunk.empty()) {  // the pieces adjoin: check_covers()
      const DensePiece& piece = pieces_[at_];
      const std::uint64_t skip = byte_offset - piece.byte_offset;
      const std::uint64_t count = std::min<std::uint64_t>(piece.bytes.size() - skip, chunk.size());
      std::copy_n(piece.bytes.data() + skip, count, chunk.data());
      chunk = chunk.subspan(count);
      byte_offset += count;
      if (skip + count == piece.bytes.size()) ++at_;
    }
    return {};
  }

  std::span<const DensePiece> pieces_;
  std::size_t at_ = 0;  // the piece that holds the next byte
};

}  // namespace

Status check_covers(const TensorSpec& tensor, std::span<const DensePiece> pieces) {
  std::uint64_t next = 0;
  for (const DensePiece& piece : pieces) {
    if (piece.byte_offset != next) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': bytes from ",
                   std::min(next, piece.byte_offset), " on are ",
                   piece.byte_offset < next ? "there twice" : "missing");
    }
    if (piece.bytes.size() > tensor.size_bytes - next) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': has ", tensor.size_bytes,
                   " bytes, the version holds more");
    }
    next += piece.bytes.size();
  }
  if (next == tensor.size_bytes) return {};
  return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': has ", tensor.size_bytes,
               " bytes, the version holds ", next);
}

Result<std::unique_ptr<TensorPatcher>> make_dense_patcher(const TensorSpec& tensor,
                                                          std::span<const DensePiece> pieces) {
  DRIFTLESS_RETURN_IF_ERROR(check_covers(tensor, pieces));
  return std::unique_ptr<TensorPatcher>(std::make_unique<DensePatcher>(tensor, pieces));
}

}  // namespace driftless
