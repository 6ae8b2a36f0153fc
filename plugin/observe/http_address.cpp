// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "plugin/observe/http_server.h"

namespace driftless {

Result<HttpAddress> parse_http_address(std::string_view text) {
  const auto refuse = [&] {
    return error(StatusCode::kInvalidArgument,
                 "expected host:port, :port or port, with a port from 0 to 65535, found '", text,
                 "'");
  };
  HttpAddress address{"127.0.0.1", 0};
  const std::size_t colon = text.rfind(':');
  const bool port_only = colon == std::string_view::npos;
  std::string_view host = port_only ? std::string_view() : text.substr(0, colon);
  const std::string_view port = port_only ? text : text.substr(colon + 1);
  const auto read = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || read.ec != std::errc() || read.ptr != port.data() + port.size()) {
    return refuse();
  }
  const bool brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (brackets) host = host.substr(1, host.size() - 2);
  const auto plain = [](char each) {
    return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'z') ||
           (each >= 'A' && each <= 'Z') || each == '.' || each == '-' || each == '_' || each == ':';
  };
  if (!std::ranges::all_of(host, plain) || host.size() > 255) return refuse();
  if (!brackets && host.find(':') != std::string_view::npos) return refuse();
  if (!host.empty()) address.host = host;
  return address;
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24U) == 127;
  if (::inet_pton(AF_INET6, text.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six) != 0;
  return host == "localhost";
}

std::string to_string(const HttpAddress& address) {
  const bool six = address.host.find(':') != std::string::npos;
  return concat(six ? "[" : "", address.host, six ? "]:" : ":", address.port);
}

}  // namespace driftless
