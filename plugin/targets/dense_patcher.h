// SPDX-License-Identifier: Apache-2.0
// A patcher that takes a tensor's new bytes from pieces which together are all of it.
#pragma once

#include <memory>
#include <span>

#include "core/layout.h"
#include "core/status.h"
#include "formats/tensor_patcher.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// Ok where `pieces`, in ascending order, hold every byte of the tensor once.
[[nodiscard]] Status check_covers(const TensorSpec& tensor, std::span<const DensePiece> pieces);

// Tensor, pieces and their bytes outlive the patcher.
[[nodiscard]] Result<std::unique_ptr<TensorPatcher>> make_dense_patcher(
    const TensorSpec& tensor, std::span<const DensePiece> pieces);

}  // namespace driftless
