// SPDX-License-Identifier: Apache-2.0
// Tickets for receivers. A driftless_receiver* is a number that is never given out twice, so that a
// closed one is found out instead of being followed into freed memory.
#pragma once

#include <memory>

#include "core/status.h"
#include "plugin/c_abi/abi_receiver.h"
#include "plugin/c_abi/driftless.h"

namespace driftless::c_abi {

[[nodiscard]] driftless_receiver* give_ticket(std::shared_ptr<AbiReceiver> held);
// kInvalidArgument for NULL, and for what is no ticket (any more).
[[nodiscard]] Result<std::shared_ptr<AbiReceiver>> find(const driftless_receiver* ticket);
void take_back(const driftless_receiver* ticket);

}  // namespace driftless::c_abi
