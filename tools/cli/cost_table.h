// SPDX-License-Identifier: Apache-2.0
// The costs of encodings as `driftless compare` and `driftless report` show them.
#pragma once

#include "tools/cli/console.h"
#include "tools/compare/encoding_costs.h"

namespace driftless::cli {

// A header and its rows, for print_table() and HtmlPage::table().
struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

// Bytes, bits per change, encode time, and seconds on each link. `full` has no bits.
[[nodiscard]] TextTable cost_table(std::span<const EncodingCost> costs,
                                   std::uint64_t changed_units);
// "compact on 100 Mbit/s, deltas on 1 Gbit/s to 100 Gbit/s": where each is fastest.
[[nodiscard]] std::string fastest_text(std::span<const EncodingCost> costs);
// {"encodings": [...], "fastest": {...}}: keys to add to an object.
void add_costs(nlohmann::ordered_json& json, std::span<const EncodingCost> costs,
               std::uint64_t changed_units);
// Of encodings that were not measured: "xor: why".
[[nodiscard]] std::vector<std::string> unmeasured(std::span<const EncodingCost> costs);
// A share as people read it: "1.234".
[[nodiscard]] std::string percent(std::uint64_t part, std::uint64_t whole);

}  // namespace driftless::cli
