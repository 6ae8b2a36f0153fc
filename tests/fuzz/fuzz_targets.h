// SPDX-License-Identifier: Apache-2.0
// The fuzz targets of this folder by their names, for the replay of their corpora.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

using FuzzFunction = int (*)(const std::uint8_t* data, std::size_t size);

struct FuzzTarget {
  std::string_view name;
  FuzzFunction function;
};

std::span<const FuzzTarget> fuzz_targets();
