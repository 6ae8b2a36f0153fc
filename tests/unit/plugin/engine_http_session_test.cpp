// SPDX-License-Identifier: Apache-2.0
// A session's calls with same_server reach the process that answered before, or no process.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "plugin/engines/engine_http.h"

namespace driftless {
namespace {

using std::chrono::seconds;

// Answers `per_connection` requests on each connection, then closes it.
class KeepingServer {
 public:
  explicit KeepingServer(int per_connection) : per_connection_(per_connection) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  KeepingServer(const KeepingServer&) = delete;
  KeepingServer& operator=(const KeepingServer&) = delete;
  ~KeepingServer() {
    (void)shutdown(listener_, SHUT_RDWR);
    thread_.join();
    (void)close(listener_);
  }
  [[nodiscard]] HttpCall get(bool same_server) const {
    return {concat("http://127.0.0.1:", port_, "/model_info"), "", "", true, same_server};
  }

  std::atomic<int> connections = 0, requests = 0;

 private:
  void serve() {
    for (;;) {
      const int peer = accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      ++connections;
      for (int i = 0; i < per_connection_ && read_request(peer); ++i) {
        ++requests;
        const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        (void)send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      (void)close(peer);
    }
  }
  static bool read_request(int peer) {
    std::string text;
    char byte;
    while (!text.ends_with("\r\n\r\n")) {
      if (recv(peer, &byte, 1, 0) != 1) return false;
      text += byte;
    }
    return true;
  }

  const int per_connection_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

TEST(HttpSession, ASessionStaysOnOneConnectionOrFails) {
  if (!check_http().ok()) GTEST_SKIP() << "built without libcurl";
  KeepingServer server(2);
  const HttpFunction session = http_session();
  const HttpAnswer first = session(server.get(false), seconds(10), nullptr);
  ASSERT_TRUE(first.status.ok()) << first.status.to_string();
  EXPECT_TRUE(first.kept);
  const HttpAnswer second = session(server.get(true), seconds(10), nullptr);
  ASSERT_TRUE(second.status.ok()) << second.status.to_string();
  EXPECT_EQ(server.connections, 1);
  const HttpAnswer third = session(server.get(true), seconds(10), nullptr);  // on a closed one
  EXPECT_EQ(third.status.code(), StatusCode::kIncomplete) << third.status.to_string();
  EXPECT_EQ(server.connections, 1) << "nothing was said to another";
  EXPECT_EQ(server.requests, 2);
  EXPECT_TRUE(session(server.get(false), seconds(10), nullptr).status.ok());
  EXPECT_EQ(server.connections, 2);
}

TEST(HttpSession, ASessionWithoutAConnectionCannotContinue) {
  if (!check_http().ok()) GTEST_SKIP() << "built without libcurl";
  KeepingServer server(1);
  EXPECT_EQ(http_session()(server.get(true), seconds(10), nullptr).status.code(),
            StatusCode::kIncomplete);
  EXPECT_EQ(server.connections, 0);
}

}  // namespace
}  // namespace driftless
