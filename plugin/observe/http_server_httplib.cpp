// SPDX-License-Identifier: Apache-2.0
// HttpServer with cpp-httplib, which provides the listening socket, the parser and the replies. The
// limits are ours: HttpConnections reads a whole request before the parser sees it, and sends the
// answer from memory.
#include <arpa/inet.h>
#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/deadline.h"
#include "core/descriptor.h"
#include "plugin/observe/http_connections.h"
#include "plugin/observe/http_server.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetry{1'000};

// Blocks all signals while it lives, so that threads started meanwhile receive none: the process
// handles its signals on its own threads.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

// The Authorization header as it was sent, or nothing. The library decodes %XX in the values of
// headers, and a token may hold a '%'.
std::optional<std::string> sent_authorization(std::string_view head) {
  constexpr std::string_view kName = "authorization:";
  constexpr std::string_view kEnd = "\r\n", kSpaces = " \t";
  const auto same = [](char sent, char lower) {
    return (sent >= 'A' && sent <= 'Z' ? sent - 'A' + 'a' : sent) == lower;
  };
  for (std::size_t at = head.find(kEnd); at != std::string_view::npos; at = head.find(kEnd)) {
    head.remove_prefix(at + kEnd.size());
    if (!std::ranges::equal(head.substr(0, kName.size()), kName, same)) continue;
    std::string_view value = head.substr(kName.size(), head.find(kEnd) - kName.size());
    value.remove_prefix(std::min(value.find_first_not_of(kSpaces), value.size()));
    value = value.substr(0, value.find_last_not_of(kSpaces) + 1);
    return std::string(value);
  }
  return std::nullopt;
}

// A complete request and its answer, as the library's stream. Which member functions are virtual,
// and which the library calls, differs between releases of cpp-httplib.
// NOLINTBEGIN(modernize-use-override,cppcoreguidelines-explicit-virtual-functions)
class Exchange final : public httplib::Stream {
 public:
  Exchange(std::string head, int socket) : head_(std::move(head)), socket_(socket) {}
  [[nodiscard]] const std::string& head() const { return head_; }
  [[nodiscard]] const std::string& reply() const { return reply_; }

  bool is_readable() const { return at_ < head_.size(); }
  bool is_writable() const { return true; }
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return true; }
  time_t duration() const { return 0; }
  ssize_t read(char* to, std::size_t size) {
    const std::size_t got = head_.copy(to, size, at_);
    at_ += got;
    return static_cast<ssize_t>(got);
  }
  ssize_t write(const char* from, std::size_t size) {
    reply_.append(from, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const {}
  socket_t socket() const { return socket_; }

 private:
  const std::string head_;
  const int socket_;
  std::size_t at_ = 0;
  std::string reply_;
};
// NOLINTEND(modernize-use-override,cppcoreguidelines-explicit-virtual-functions)

// Runs a connection's job immediately: the job only passes the connection on.
class InPlace final : public httplib::TaskQueue {
 public:
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Enqueued enqueue(std::function<void()> job) override {
    job();
    return static_cast<Enqueued>(true);
  }
  void shutdown() override {}
};

class Listener final : public httplib::Server {
 public:
  explicit Listener(HttpHandler handler)
      : handler_(std::move(handler)), connections_([this](std::string request, int socket) {
          return reply(std::move(request), socket);
        }) {
    new_task_queue = [] { return new InPlace; };
    // The library's SO_REUSEPORT would let two processes share a port; without it the second one is
    // refused. With SO_REUSEADDR a port that a killed process left can be bound again at once.
    set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
      return HandlerResponse::Handled;
    });
  }
  // The library lets only 5 connections wait to be accepted: a larger burst would be lost.
  void let_more_wait() { ::listen(svr_sock_, static_cast<int>(HttpServer::kWaiting)); }
  [[nodiscard]] Status start(std::uint16_t port) {
    port_ = port;
    return connections_.start();
  }
  // Call it before the server is stopped.
  void end() { connections_.end(); }

 private:
  // Replaces the library's reading from the socket.
  bool process_and_close_socket(socket_t accepted) override {
    Descriptor socket(accepted);
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    try {
      connections_.add(std::move(socket));
    } catch (const std::exception&) {  // out of memory: the connection is closed
      return false;
    }
    return true;
  }
  // Empty: out of memory.
  std::string reply(std::string request, int socket) {
    try {
      Exchange exchange(std::move(request), socket);
      process(*this, exchange);
      return exchange.reply();
    } catch (const std::exception&) {
      return {};
    }
  }

  template <typename Self>
  static void process(Self& self, Exchange& exchange) {
    bool closed = false;
    httplib::Stream& stream = exchange;
    // Remove range requests: many ranges would take many times the memory of the answer.
    const std::function<void(httplib::Request&)> change = [&](httplib::Request& request) {
      request.ranges.clear();
      const std::optional<std::string> sent = sent_authorization(exchange.head());
      if (!sent) return;
      request.headers.erase("Authorization");
      request.headers.emplace("Authorization", *sent);
    };
    if constexpr (requires { self.process_request(stream, true, closed, change); }) {
      self.process_request(stream, true, closed, change);
    } else {
      self.process_request(stream, std::string(), 0, std::string(), 0, true, closed, change);
    }
  }

  void answer(const httplib::Request& request, httplib::Response& response) const {
    HttpRequest asked{request.method,
                      request.path,
                      request.get_header_value("Host"),
                      request.get_header_value("Authorization"),
                      {request.params.begin(), request.params.end()},
                      port_};
    HttpReply reply;
    try {
      reply = handler_(asked);
    } catch (...) {  // out of memory; the library would answer with the exception's text
      reply.status = 500;
    }
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    response.set_content(std::move(reply.body), reply.type);
  }

  const HttpHandler handler_;
  std::uint16_t port_ = 0;
  HttpConnections connections_;
};

Status why_not_bound(const HttpAddress& address, int reason) {
  const std::string name = to_string(address);
  if (reason == EADDRINUSE) {
    return error(StatusCode::kBusy, name,
                 " is in use by another process: choose another port, or 0 for any that is free");
  }
  return error(StatusCode::kInvalidArgument, name, " cannot be listened on: ",
               reason == 0 ? "no address of this host" : std::strerror(reason));
}

class HttplibServer final : public HttpServer {
 public:
  explicit HttplibServer(HttpHandler handler) : listener_(new Listener(std::move(handler))) {}
  HttplibServer(const HttplibServer&) = delete;
  HttplibServer& operator=(const HttplibServer&) = delete;
  // In a forked child there are no threads to join: they belong to the parent.
  ~HttplibServer() override {
    if (!thread_.joinable()) return;
    if (::getpid() != owner_) {
      thread_.detach();
      static_cast<void>(listener_.release());
      return;
    }
    over_ = true;
    listener_->end();
    while (!ended_ && !listener_->is_running()) {  // before it runs, stop() would do nothing
      std::this_thread::sleep_for(milliseconds(1));
    }
    listener_->stop();
    thread_.join();
  }

  [[nodiscard]] Status start(const HttpAddress& address) {
    DRIFTLESS_RETURN_IF_ERROR(bind(address));
    const WithoutSignals quiet;
    DRIFTLESS_RETURN_IF_ERROR(listener_->start(port_));
    thread_ = std::thread([this, address] { serve({address.host, port_}); });
    return {};
  }
  [[nodiscard]] std::uint16_t port() const override { return port_; }

 private:
  [[nodiscard]] Status bind(const HttpAddress& address) {
    errno = 0;
    if (address.port == 0) {
      const int chosen = listener_->bind_to_any_port(address.host);
      if (chosen <= 0) return why_not_bound(address, errno);
      port_ = static_cast<std::uint16_t>(chosen);
    } else {
      if (!listener_->bind_to_port(address.host, address.port)) {
        return why_not_bound(address, errno);
      }
      port_ = address.port;
    }
    listener_->let_more_wait();
    return {};
  }
  // If no descriptors are left, accept() fails and the library gives up: bind again.
  void serve(const HttpAddress& address) {
    while (!over_) {
      listener_->listen_after_bind();
      if (over_) break;
      std::this_thread::sleep_for(kRetry);
      static_cast<void>(bind(address));
    }
    ended_ = true;
  }

  const pid_t owner_ = ::getpid();
  std::unique_ptr<Listener> listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> over_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> start_http_server(const HttpAddress& address,
                                                      HttpHandler handler) {
  try {
    auto server = std::make_unique<HttplibServer>(std::move(handler));
    DRIFTLESS_RETURN_IF_ERROR(server->start(address));
    return std::unique_ptr<HttpServer>(std::move(server));
  } catch (const std::exception& failed) {
    return error(StatusCode::kInternal, "the status server did not start: ", failed.what());
  }
}

}  // namespace driftless
