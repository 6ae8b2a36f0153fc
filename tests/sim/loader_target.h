// SPDX-License-Identifier: Apache-2.0
// Tensors in memory, one of which is written by an engine's loader. The loader fails now and then,
// in the middle of a write or of the undo.
#pragma once

#include <memory>
#include <optional>

#include "plugin/targets/mapped_target.h"
#include "sim/world.h"

namespace driftless::testing {

// The loader writes the first tensor of `memory`, which has this layout. `base`: the digest of the
// weights there; none: they are no version.
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_loader_target(
    World& world, const WeightLayout& layout, Weights& memory, const std::optional<Digest>& base);

}  // namespace driftless::testing
