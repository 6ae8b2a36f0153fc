// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/tensor_groups.h"

#include <algorithm>

namespace driftless {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

}  // namespace

TensorPlace place_of_tensor(std::string_view name) {
  TensorPlace place;
  std::string before, kind;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view word = name.substr(at, end - at);
    at = end + 1;
    if (is_number(word)) {
      if (place.layer.empty()) place.layer = std::string(name.substr(0, end));
      // The words before the layer's number do not belong to the kind.
      if (place.layer.size() == end) kind.clear();
      continue;
    }
    if (at > name.size() && word == "weight" && !kind.empty()) break;
    if (!kind.empty()) kind += '.';
    kind += word;
  }
  if (place.layer.empty()) place.layer = kNoLayer;
  place.kind = kind.empty() ? std::string(name) : kind;
  return place;
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [](std::string_view text, std::size_t& at) {
      const std::size_t begin = std::min(text.find_first_not_of('0', at), text.size());
      at = begin;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = number(a, i), y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j;
}

DensityGroup& group_named(std::vector<DensityGroup>& groups, std::string_view name) {
  const auto at = std::ranges::find(groups, name, &DensityGroup::name);
  return at != groups.end() ? *at : groups.emplace_back(DensityGroup{std::string(name)});
}

}  // namespace driftless
