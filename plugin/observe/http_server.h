// SPDX-License-Identifier: Apache-2.0
// HttpServer: answers requests from memory, on threads of its own, within bounds: kReading
// connections whose requests are not whole yet (for a further one, that which has waited longest
// gets 503), kThreads that are answered at a time and kWaiting more that wait for that (further
// ones get 503), kHeaderBytes of a request, kPatience for all of it and for each write of the
// answer. A request for /ready waits for no other. One request per connection; bodies are not read.
// Only this interface is known to others; the server is built with cpp-httplib
// (http_server_httplib.cpp) and may lie in a library that is loaded on demand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace driftless {

struct HttpAddress {
  std::string host;        // numeric, or a name
  std::uint16_t port = 0;  // 0: any that is free
};

struct HttpRequest {
  std::string method, path;         // without the query
  std::string host, authorization;  // of the headers of these names; empty: none
  std::vector<std::pair<std::string, std::string>> query;
  std::uint16_t port = 0;  // that the connection came to
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Called by several threads at once. A request for HEAD is answered like one for GET; the server
// leaves the body out.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

class HttpServer {
 public:
  static constexpr unsigned kThreads = 16;
  static constexpr std::size_t kWaiting = 64;
  static constexpr std::size_t kReading = 128;
  static constexpr std::size_t kHeaderBytes = 8 << 10;
  static constexpr std::chrono::milliseconds kPatience{5'000};

  virtual ~HttpServer() = default;  // ends its threads, within 2 * kPatience
  // The port that it listens on.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

// Begins to listen. kBusy if the address is in use, kInvalidArgument if it is none of this host's.
using StartHttpServer = Result<std::unique_ptr<HttpServer>> (*)(const HttpAddress& address,
                                                                HttpHandler handler);
[[nodiscard]] Result<std::unique_ptr<HttpServer>> start_http_server(const HttpAddress& address,
                                                                    HttpHandler handler);

// "host:port", "[::1]:port", ":port" or "port"; without a host 127.0.0.1. kInvalidArgument says
// what was expected.
[[nodiscard]] Result<HttpAddress> parse_http_address(std::string_view text);
// Only this machine can connect to it: localhost, 127.0.0.0/8 or ::1.
[[nodiscard]] bool is_loopback(std::string_view host);
// As it stands in a URL.
[[nodiscard]] std::string to_string(const HttpAddress& address);

}  // namespace driftless
