// SPDX-License-Identifier: Apache-2.0
// Formats the costs of encodings for `driftless compare` and `driftless report`.
#pragma once

#include "tools/cli/console.h"
#include "tools/compare/encoding_costs.h"

namespace driftless::cli {

// A header and its rows, for print_table() and HtmlPage::table().
struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

// Bytes, bits per change, encode time, and the time on each link. `full` has no bits per change.
[[nodiscard]] TextTable cost_table(std::span<const EncodingCost> costs,
                                   std::uint64_t changed_units);
// The links on which each encoding is fastest: "compact on 100 Mbit/s, deltas on 1 Gbit/s to 100
// Gbit/s".
[[nodiscard]] std::string fastest_text(std::span<const EncodingCost> costs);
// Adds the keys {"encodings": [...], "fastest": {...}} to an object.
void add_costs(nlohmann::ordered_json& json, std::span<const EncodingCost> costs,
               std::uint64_t changed_units);
// The encodings that were not measured, with the reason: "xor: why".
[[nodiscard]] std::vector<std::string> unmeasured(std::span<const EncodingCost> costs);
// A percentage as text: "1.234".
[[nodiscard]] std::string percent(std::uint64_t part, std::uint64_t whole);

}  // namespace driftless::cli
