// SPDX-License-Identifier: Apache-2.0
#include "core/quantize_rule.h"

#include <algorithm>
#include <iterator>

namespace driftless {
namespace {

constexpr std::string_view kRuleNames[] = {"linear", "linear_div", "ue8m0"};  // as the enum

}  // namespace

std::string_view to_string(QuantizeRule rule) { return kRuleNames[static_cast<std::size_t>(rule)]; }

Result<QuantizeRule> parse_quantize_rule(std::string_view name) {
  const auto* const at = std::ranges::find(kRuleNames, name);
  if (at != std::end(kRuleNames)) return static_cast<QuantizeRule>(at - kRuleNames);
  return error(StatusCode::kInvalidArgument, "unknown rule '", name,
               "'; known are linear, linear_div and ue8m0");
}

}  // namespace driftless
