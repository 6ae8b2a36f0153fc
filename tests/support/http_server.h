// SPDX-License-Identifier: Apache-2.0
// An HTTP server for one test: answers every request by a function, and remembers them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace driftless::testing {

struct HttpRequest {
  std::string line;     // "POST /path HTTP/1.1"
  std::string headers;  // as sent
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::chrono::milliseconds delay{0};  // before it is sent; ends with the server
  std::string extra_headers;           // each with "\r\n"
};

// One thread per connection, one request per connection. `answer` is called from those threads, one
// at a time.
class HttpServer {
 public:
  using Answer = std::function<HttpResponse(const HttpRequest&)>;

  explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        ::listen(socket_, 64) == 0) {
      ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
      port_ = ntohs(address.sin_port);
    }
    acceptor_ = std::thread([this] { accept_all(); });
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer() {
    stop_ = true;
    acceptor_.join();
    for (std::thread& thread : connections_) thread.join();
    ::close(socket_);
  }

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::vector<HttpRequest> requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

 private:
  [[nodiscard]] static bool readable(int socket) {
    pollfd waiting{socket, POLLIN, 0};
    return ::poll(&waiting, 1, 20) > 0;
  }

  void accept_all() {
    while (!stop_) {
      if (!readable(socket_)) continue;
      const int connection = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection >= 0) connections_.emplace_back([this, connection] { serve(connection); });
    }
  }

  void serve(int connection) {
    HttpRequest request;
    if (receive(connection, request)) {
      HttpResponse response;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        requests_.push_back(request);
        response = answer_(request);
      }
      const auto until = std::chrono::steady_clock::now() + response.delay;
      while (!stop_ && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      send(connection, "HTTP/1.1 " + std::to_string(response.status) + " Status\r\n" +
                           response.extra_headers +
                           "Content-Length: " + std::to_string(response.body.size()) +
                           "\r\nConnection: close\r\n\r\n" + response.body);
    }
    ::close(connection);
  }

  [[nodiscard]] bool receive(int connection, HttpRequest& request) const {
    std::string all;
    for (;;) {
      if (stop_) return false;
      if (readable(connection)) {
        std::array<char, 4'096> bytes;
        const ssize_t got = ::recv(connection, bytes.data(), bytes.size(), 0);
        if (got <= 0) return false;
        all.append(bytes.data(), static_cast<std::size_t>(got));
      }
      const std::size_t end = all.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      const std::size_t line = all.find("\r\n");
      request.line = all.substr(0, line);
      request.headers = all.substr(line + 2, end - line);
      request.body = all.substr(end + 4);
      const std::size_t length = request.headers.find("Content-Length: ");
      const std::size_t expected =
          length == std::string::npos ? 0 : std::stoul(request.headers.substr(length + 16));
      if (request.body.size() >= expected) return true;
    }
  }

  static void send(int connection, const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t more = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) return;  // the client has gone
      sent += static_cast<std::size_t>(more);
    }
  }

  const Answer answer_;
  int socket_ = -1;
  unsigned port_ = 0;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::vector<std::thread> connections_;  // of the acceptor's thread, then of the destructor
  std::thread acceptor_;
};

}  // namespace driftless::testing
