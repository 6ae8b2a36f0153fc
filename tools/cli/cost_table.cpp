// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/cost_table.h"

#include <map>
#include <nlohmann/json.hpp>

namespace driftless::cli {
namespace {

// Nothing if there are no changes, or if the files contain whole tensors.
std::optional<double> bits_per_changed(const EncodingCost& cost, std::uint64_t changed_units) {
  if (changed_units == 0 || cost.encoding == Encoding::kFull) return std::nullopt;
  return 8.0 * ratio(cost.bytes, changed_units);
}

// Short times get more digits.
std::string seconds_text(double seconds) {
  return fixed(seconds, seconds < 0.01 ? 6 : seconds < 10 ? 3 : 1);
}

}  // namespace

std::string percent(std::uint64_t part, std::uint64_t whole) {
  return fixed(100 * ratio(part, whole), 3);
}

TextTable cost_table(std::span<const EncodingCost> costs, std::uint64_t changed_units) {
  TextTable table{{"encoding", "layout", "payload", "size", "bits per change", "encode ms"}, {}};
  for (const Link& link : kLinks) table.header.push_back(concat("s on ", link.name));
  for (const EncodingCost& cost : costs) {
    auto& row = table.rows.emplace_back();
    row = {std::string(info(cost.encoding).name), std::string(to_string(cost.layout))};
    if (!cost.measured()) {
      row.resize(table.header.size(), "-");
      continue;
    }
    const std::optional<double> bits = bits_per_changed(cost, changed_units);
    row.insert(row.end(), {std::to_string(cost.bytes), human_bytes(cost.bytes),
                           bits ? fixed(*bits, 2) : "-", fixed(cost.encode_ms, 1)});
    for (const Link& link : kLinks) row.push_back(seconds_text(link_seconds(cost.bytes, link)));
  }
  return table;
}

std::string fastest_text(std::span<const EncodingCost> costs) {
  std::string text;
  for (std::size_t i = 0; i < std::size(kLinks);) {
    const EncodingCost* const best = fastest_on(costs, kLinks[i]);
    if (best == nullptr) return {};
    const std::size_t first = i;
    while (i < std::size(kLinks) && fastest_on(costs, kLinks[i]) == best) ++i;
    text += concat(text.empty() ? "" : ", ", info(best->encoding).name, " on ", kLinks[first].name);
    if (i - first > 1) text += concat(" to ", kLinks[i - 1].name);
  }
  return text;
}

void add_costs(nlohmann::ordered_json& json, std::span<const EncodingCost> costs,
               std::uint64_t changed_units) {
  json["encodings"] = nlohmann::ordered_json::array();
  for (const EncodingCost& cost : costs) {
    nlohmann::ordered_json row{{"encoding", info(cost.encoding).name},
                               {"layout", to_string(cost.layout)}};
    if (cost.measured()) {
      row["bytes"] = cost.bytes;
      const std::optional<double> bits = bits_per_changed(cost, changed_units);
      row["bits_per_changed"] = bits ? nlohmann::ordered_json(*bits) : nlohmann::ordered_json();
      row["encode_ms"] = cost.encode_ms;
      for (const Link& link : kLinks) row["link_s"][link.name] = link_seconds(cost.bytes, link);
    } else {
      row["not_measured"] = cost.why_not;
    }
    json["encodings"].push_back(std::move(row));
  }
  json["fastest"] = nlohmann::ordered_json::object();
  for (const Link& link : kLinks) {
    const EncodingCost* const best = fastest_on(costs, link);
    if (best != nullptr) json["fastest"][link.name] = info(best->encoding).name;
  }
}

std::vector<std::string> unmeasured(std::span<const EncodingCost> costs) {
  std::vector<std::string> lines;
  for (const EncodingCost& cost : costs) {
    if (!cost.measured()) lines.push_back(concat(info(cost.encoding).name, ": ", cost.why_not));
  }
  return lines;
}

}  // namespace driftless::cli
