// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

// Keeps a position in each piece: blocks interleave, so a chunk may have bytes of several pieces.
class DensePatcher final : public TensorPatcher {
 public:
  DensePatcher(const TensorSpec& tensor, std::span<const DensePiece> pieces)
      : TensorPatcher(tensor), unit_(unit_bytes(tensor.dtype)) {
    for (const DensePiece& piece : pieces) left_.push_back({&piece, 0});
  }

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    const std::uint64_t end = byte_offset + chunk.size();
    for (auto& [piece, done] : left_) {
      while (done < piece->bytes.size()) {
        const DensePiece next = piece->stretch(done, unit_);
        if (next.byte_offset >= end) break;
        // Chunks adjoin, so nothing before this one is left.
        const std::uint64_t count =
            std::min<std::uint64_t>(next.bytes.size(), end - next.byte_offset);
        std::copy_n(next.bytes.data(), count, chunk.data() + (next.byte_offset - byte_offset));
        done += count;
      }
    }
    return {};
  }

  struct Left {
    const DensePiece* piece = nullptr;
    std::uint64_t done = 0;
  };
  unsigned unit_;
  std::vector<Left> left_;
};

}  // namespace

std::unique_ptr<TensorPatcher> make_dense_patcher(const TensorSpec& tensor,
                                                  std::span<const DensePiece> pieces) {
  return std::make_unique<DensePatcher>(tensor, pieces);
}

}  // namespace driftless
