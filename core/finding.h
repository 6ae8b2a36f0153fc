// SPDX-License-Identifier: Apache-2.0
// Finding: the result of one check of a host, a road or an engine, for an operator.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// kSkip: the check does not apply, or its subject is missing and nothing needs it.
enum class FindingState : unsigned char { kOk, kWarn, kFail, kSkip };

struct Finding {
  std::string check;  // one word or two: "rename"
  FindingState state = FindingState::kOk;
  std::string finding;
  std::string next = {};  // the next action; empty: none
};

[[nodiscard]] constexpr std::string_view to_string(FindingState state) {
  switch (state) {
    case FindingState::kOk: return "ok";
    case FindingState::kWarn: return "warn";
    case FindingState::kFail: return "fail";
    case FindingState::kSkip: return "skip";
  }
  return "?";
}

// The finding for a call that failed.
[[nodiscard]] inline Finding failed(std::string_view check, const Status& status,
                                    std::string_view next) {
  return {std::string(check), FindingState::kFail, status.to_string(), std::string(next)};
}

}  // namespace driftless
