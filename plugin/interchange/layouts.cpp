// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/layouts.h"

#include <algorithm>
#include <array>

namespace driftless {
namespace {

constexpr std::string_view kOfFrames = "indices, deltas, deltas_zstd or compact";
constexpr std::array kFormats{
    PublicationFormat{.layout = DirectoryLayout::kFrames, .encodings = kOfFrames},
    PublicationFormat{
        .layout = DirectoryLayout::kHdf5, .in_directory = true, .encodings = kOfFrames},
    PublicationFormat{.layout = DirectoryLayout::kHfDelta,
                      .in_directory = true,
                      .usual = Encoding::kXor,
                      .encodings = "xor or overwrite",
                      .takes_blocks = false,
                      .delta_shards = true,
                      .anchors_among_versions = true},
    // Flush files cannot hold whole tensors, so a full version is a plain checkpoint.
    PublicationFormat{.layout = DirectoryLayout::kFlush,
                      .in_directory = true,
                      .usual = Encoding::kDeltasZstd,
                      .encodings = "indices, deltas or deltas_zstd",
                      .takes_blocks = false},
};

constexpr bool all_listed() {
  for (const DirectoryLayout layout : {DirectoryLayout::kFrames, DirectoryLayout::kHdf5,
                                       DirectoryLayout::kHfDelta, DirectoryLayout::kFlush}) {
    if (std::ranges::count(kFormats, layout, &PublicationFormat::layout) != 1) return false;
  }
  return true;
}
static_assert(all_listed());

}  // namespace

// An invalid number is treated as frames, the layout that does not use files.
const PublicationFormat& publication_format(DirectoryLayout layout) {
  const auto at = std::ranges::find(kFormats, layout, &PublicationFormat::layout);
  return at == kFormats.end() ? kFormats.front() : *at;
}

bool PublicationFormat::carries(Encoding encoding) const {
  const EncodingInfo& about = info(encoding);
  if (delta_shards) return about.interchange;
  return about.positional || (takes_blocks && encoding == Encoding::kCompact);
}

// The readers of slime, miles and SGLang cannot take a tensor in several pieces.
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
