// SPDX-License-Identifier: Apache-2.0
// What all publisher ranks know of the run.
#pragma once

#include <array>

#include "core/digest.h"
#include "core/layout.h"
#include "core/version.h"
#include "formats/encoding.h"
#include "plugin/publish/block_splitter.h"

namespace driftless {

// How a version is cut and encoded, so that all receivers can read it.
struct VersionShape {
  Encoding encoding = Encoding::kDeltas;  // unless the version is full
  std::vector<BlockCut> cuts;             // ascending by tensor
  std::vector<std::uint32_t> plain;       // tensors that `compact` must not code, ascending
};

struct RunState {
  WeightLayout layout;              // of all ranks
  std::vector<std::size_t> owners;  // per tensor of the layout: ranks that own some of it
  std::vector<bool> in_blocks;      // per tensor of the layout: no rank owns all of it
  VersionId id;                     // committed
  Digest digest;                    // of all ranks' weights at id
  Digest base_digest;               // of version 0, all ranks
  VersionShape shape;
  // WeightSource::companions_dir() of the base, and of what was published last.
  std::array<std::string, 2> companions;
};

}  // namespace driftless
