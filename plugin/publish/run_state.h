// SPDX-License-Identifier: Apache-2.0
// The state of the run that all publisher ranks share.
#pragma once

#include <array>

#include "core/digest.h"
#include "core/layout.h"
#include "core/version.h"
#include "formats/encoding.h"
#include "plugin/publish/block_splitter.h"

namespace driftless {

// How a version is cut and encoded. All receivers must be able to read it.
struct VersionShape {
  Encoding encoding = Encoding::kDeltas;  // unless the version is full
  std::vector<BlockCut> cuts;             // ascending by tensor
  std::vector<std::uint32_t> plain;       // tensors that `compact` must not code, ascending
};

struct RunState {
  WeightLayout layout;              // of all ranks
  std::vector<std::size_t> owners;  // by tensor of the layout: how many ranks own some of it
  std::vector<bool> in_blocks;      // by tensor of the layout: it is offered in blocks
  VersionId id;                     // the last committed version
  Digest digest;                    // of all ranks' weights at id
  Digest base_digest;               // of all ranks' weights at version 0
  VersionShape shape;
  // WeightSource::companions_dir() of the base, and of the last published source.
  std::array<std::string, 2> companions;
};

}  // namespace driftless
