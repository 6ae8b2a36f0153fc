// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/layouts.h"

#include <algorithm>
#include <array>

namespace driftless {
namespace {

constexpr std::array kFormats{
    PublicationFormat{DirectoryLayout::kFrames},
    PublicationFormat{DirectoryLayout::kHdf5},
    PublicationFormat{DirectoryLayout::kHfDelta, false, true, true},
    // Flush files have no whole tensors: a full version is a plain checkpoint.
    PublicationFormat{DirectoryLayout::kFlush, false},
};

}  // namespace

const PublicationFormat& publication_format(DirectoryLayout layout) {
  return *std::ranges::find(kFormats, layout, &PublicationFormat::layout);
}

// The readers of slime, miles and SGLang cannot take a tensor in pieces.
std::optional<WidePositions> find_wide_positions(const PublicationFormat& format, Encoding encoding,
                                                 const WeightLayout& layout, std::uint64_t limit) {
  const bool bytes = format.delta_shards && encoding == Encoding::kOverwrite;
  const bool units = format.layout == DirectoryLayout::kFlush && encoding == Encoding::kIndices;
  if (!bytes && !units) return std::nullopt;
  for (const TensorSpec& tensor : layout.tensors()) {
    if (bytes ? tensor.size_bytes > limit : tensor.units() > limit / 2) {
      return WidePositions{&tensor, bytes ? Encoding::kXor : Encoding::kDeltas};
    }
  }
  return std::nullopt;
}

}  // namespace driftless
