// SPDX-License-Identifier: Apache-2.0
// Input: the text of an index. What is accepted must hold only usable names.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "formats/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = driftless::parse_checkpoint_index(text, "input");
  if (!index.ok()) {
    if (index.status().message().find('\n') != std::string_view::npos) std::abort();
    return 0;
  }
  for (const auto& [tensor, file] : *index) {
    if (!driftless::check_tensor_name(tensor).ok() || !driftless::check_file_name(file).ok()) {
      std::abort();
    }
  }
  return 0;
}
