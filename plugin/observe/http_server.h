// SPDX-License-Identifier: Apache-2.0
// HttpServer: answers requests from memory, on its own threads, within limits. At most kReading
// connections may have incomplete requests: if one more comes, the oldest gets 503. kThreads
// requests are answered at a time, and kWaiting more wait: further ones get 503. A request has at
// most kHeaderBytes, and kPatience limits the time to receive it and each write of the answer. A
// request for /ready never waits for others. One request per connection; bodies are not read. Other
// code uses only this interface. The server is built with cpp-httplib (http_server_httplib.cpp) and
// may be in a library that is loaded on demand.
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
  std::uint16_t port = 0;  // 0: any free port
};

struct HttpRequest {
  std::string method, path;         // without the query
  std::string host, authorization;  // the headers of these names; empty: none
  std::vector<std::pair<std::string, std::string>> query;
  std::uint16_t port = 0;  // the local port of the connection
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Called by several threads at once. It answers HEAD like GET; the server leaves the body out.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

class HttpServer {
 public:
  static constexpr unsigned kThreads = 16;
  static constexpr std::size_t kWaiting = 64;
  static constexpr std::size_t kReading = 128;
  static constexpr std::size_t kHeaderBytes = 8 << 10;
  static constexpr std::chrono::milliseconds kPatience{5'000};

  virtual ~HttpServer() = default;  // ends its threads, within 2 * kPatience
  // The port on which it listens.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

// Starts to listen. kBusy if the address is in use, kInvalidArgument if it is not an address of
// this host.
using StartHttpServer = Result<std::unique_ptr<HttpServer>> (*)(const HttpAddress& address,
                                                                HttpHandler handler);
[[nodiscard]] Result<std::unique_ptr<HttpServer>> start_http_server(const HttpAddress& address,
                                                                    HttpHandler handler);

// Parses "host:port", "[::1]:port", ":port" or "port"; without a host it is 127.0.0.1.
// The message of kInvalidArgument names the expected form.
[[nodiscard]] Result<HttpAddress> parse_http_address(std::string_view text);
// Whether only this machine can connect to it: localhost, 127.0.0.0/8 or ::1.
[[nodiscard]] bool is_loopback(std::string_view host);
// In the form used in a URL.
[[nodiscard]] std::string to_string(const HttpAddress& address);

}  // namespace driftless
