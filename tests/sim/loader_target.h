// SPDX-License-Identifier: Apache-2.0
// Tensors in memory of which one is written by an engine's loader, which fails now and then: in the
// middle of a write, and also when that is to be taken back.
#pragma once

#include <memory>
#include <optional>

#include "plugin/targets/mapped_target.h"
#include "sim/world.h"

namespace driftless::testing {

// The loader writes the first tensor of `memory`, whose layout this is. `base`: the digest of the
// weights there; none: they are no version.
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_loader_target(
    World& world, const WeightLayout& layout, Weights& memory, const std::optional<Digest>& base);

}  // namespace driftless::testing
