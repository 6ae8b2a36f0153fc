// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/sglang_command.h"

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace driftless {
namespace {

constexpr std::string_view kTensorName = "driftless.command";

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t place = at + i;
      three = three << 8U | (place < bytes.size() ? static_cast<unsigned char>(bytes[place]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const bool pad = at + i > bytes.size();
      text += pad ? '=' : kDigits[three >> (18U - 6U * static_cast<unsigned>(i)) & 63U];
    }
  }
  return text;
}

}  // namespace

// Pickle protocol 2 of a list with one pair: a string and torch.ByteTensor([bytes]).
std::string sglang_command(const Json& command) {
  const std::string json = command.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string pickle("\x80\x02](X", 5);
  for (unsigned i = 0; i < 4; ++i) pickle += static_cast<char>(kTensorName.size() >> 8U * i & 255U);
  pickle += kTensorName;
  pickle += "ctorch\nByteTensor\n](";
  for (const char byte : json) {
    pickle += 'K';
    pickle += byte;
  }
  pickle +=
      "e\x85R\x86"
      "e.";
  return base64(pickle);
}

}  // namespace driftless
