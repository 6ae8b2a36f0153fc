// SPDX-License-Identifier: Apache-2.0
// HttpServer with cpp-httplib: its sockets, its parser and its replies. The bounds are ours: a
// request is read here, whole and within kPatience, before the parser sees it, and its answer is
// sent from memory.
#include <arpa/inet.h>
#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "core/deadline.h"
#include "core/descriptor.h"
#include "plugin/observe/http_server.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kDrainBytes = 64 << 10;
constexpr milliseconds kDrain{500};
constexpr milliseconds kRetry{1'000};
constexpr milliseconds kLook{100};  // whether the server is to end

// A thread that is begun while this lives receives no signal: they are the process's own.
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

// False: the deadline passed, or the server is to end.
bool wait_for(int socket, short events, const Deadline& deadline, const std::atomic<bool>& ending) {
  pollfd watched{socket, events, 0};
  for (;;) {
    const milliseconds wait = std::min(deadline.remaining(), kLook);
    const int ready = ::poll(&watched, 1, static_cast<int>(wait.count()));
    if (ready > 0) return true;
    if ((ready < 0 && errno != EINTR) || ending || deadline.expired()) return false;
  }
}

// A request up to the empty line behind its headers. Empty: it did not come in time, or is longer
// than kHeaderBytes (then `too_long`).
std::string read_head(int socket, const std::atomic<bool>& ending, bool& too_long) {
  const Deadline deadline = Deadline::after(HttpServer::kPatience);
  std::string head;
  std::array<char, 2048> piece{};
  while (head.size() <= HttpServer::kHeaderBytes) {
    if (!wait_for(socket, POLLIN, deadline, ending)) return {};
    const ssize_t got = ::recv(socket, piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return {};
    const std::size_t look = head.size() < 3 ? 0 : head.size() - 3;
    head.append(piece.data(), static_cast<std::size_t>(got));
    const std::size_t end = head.find("\r\n\r\n", look);
    if (end == std::string::npos) continue;
    head.resize(end + 4);  // a body, or a second request, is not read
    if (head.size() > HttpServer::kHeaderBytes) break;
    return head;
  }
  too_long = true;
  return {};
}

void send_all(int socket, const std::atomic<bool>& ending, std::string_view bytes) {
  Deadline deadline = Deadline::after(HttpServer::kPatience);
  const Deadline all = Deadline::after(2 * HttpServer::kPatience);
  while (!bytes.empty() && !all.expired() && wait_for(socket, POLLOUT, deadline, ending)) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    deadline = Deadline::after(HttpServer::kPatience);
  }
}

// To close a socket with unread input resets the connection, and the answer may be lost with it.
void close_politely(const Descriptor& socket, const std::atomic<bool>& ending) {
  ::shutdown(socket.get(), SHUT_WR);
  const Deadline deadline = Deadline::after(kDrain);
  std::array<char, 4096> piece{};
  std::size_t read = 0;
  while (read < kDrainBytes && wait_for(socket.get(), POLLIN, deadline, ending)) {
    const ssize_t got = ::recv(socket.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    read += static_cast<std::size_t>(got);
  }
}

// A request that was read, and room for its answer. Which of these are virtual, and which are
// asked, differs between releases of cpp-httplib.
// NOLINTBEGIN(modernize-use-override,cppcoreguidelines-explicit-virtual-functions)
class Exchange final : public httplib::Stream {
 public:
  Exchange(std::string head, int socket) : head_(std::move(head)), socket_(socket) {}
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

// kThreads threads and kWaiting connections that wait for one. Further ones are refused at once, by
// the thread that accepted them.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

  // `refusing` is set while a connection is to be refused.
  explicit BoundedQueue(bool& refusing) : refusing_(refusing) {
    for (unsigned i = 0; i < HttpServer::kThreads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }
  Enqueued enqueue(std::function<void()> job) override {
    std::unique_lock lock(mutex_);
    if (jobs_.size() < HttpServer::kWaiting) {
      jobs_.push_back(std::move(job));
      changed_.notify_one();
    } else {
      lock.unlock();
      refusing_ = true;
      job();
      refusing_ = false;
    }
    return static_cast<Enqueued>(true);
  }
  void shutdown() override {
    {
      const std::scoped_lock lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return over_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }
  }

  bool& refusing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

class Listener final : public httplib::Server {
 public:
  explicit Listener(HttpHandler handler) : handler_(std::move(handler)) {
    new_task_queue = [this] { return new BoundedQueue(refusing_); };
    // Two processes on one port would share its connections (SO_REUSEPORT): the second one is
    // refused. A port that a killed process left is free again at once.
    set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
      return HandlerResponse::Handled;
    });
  }
  // The library lets 5 connections wait to be accepted: a burst of more would be lost.
  void let_more_wait() { ::listen(svr_sock_, static_cast<int>(HttpServer::kWaiting)); }
  // By the thread that accepts, before it does.
  void accept_here(std::uint16_t port) {
    accepting_ = std::this_thread::get_id();
    port_ = port;
  }
  // Before the server is stopped: connections that wait are closed.
  void end() { ending_ = true; }

 private:
  // Where the library would read from the socket itself. It closes the socket.
  bool process_and_close_socket(socket_t accepted) override {
    Descriptor socket(accepted);
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    if (ending_) return false;
    if (refusing_is_here()) {
      constexpr std::string_view kBusy =
          "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
      ::send(socket.get(), kBusy.data(), kBusy.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      return false;
    }
    bool too_long = false;
    std::string head = read_head(socket.get(), ending_, too_long);
    if (too_long) {
      send_all(socket.get(), ending_,
               "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n"
               "Content-Length: 0\r\n\r\n");
    } else if (!head.empty()) {
      try {
        Exchange exchange(std::move(head), socket.get());
        process(*this, exchange);
        send_all(socket.get(), ending_, exchange.reply());
      } catch (...) {  // lack of memory: the connection is closed without an answer
        return false;
      }
    }
    close_politely(socket, ending_);
    return true;
  }
  // The accepting thread alone sets and reads refusing_.
  [[nodiscard]] bool refusing_is_here() const {
    return std::this_thread::get_id() == accepting_ && refusing_;
  }

  template <typename Self>
  static void process(Self& self, httplib::Stream& stream) {
    bool closed = false;
    // Parts of an answer are not for sale: many of them would take many times its memory.
    const std::function<void(httplib::Request&)> change = [](httplib::Request& request) {
      request.ranges.clear();
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
    } catch (...) {  // lack of memory; the library would answer with the exception's text
      reply.status = 500;
    }
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    response.set_content(std::move(reply.body), reply.type);
  }

  const HttpHandler handler_;
  std::uint16_t port_ = 0;
  std::thread::id accepting_;
  bool refusing_ = false;
  std::atomic<bool> ending_ = false;
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
  // In a forked child there are no threads to be joined: all of it is the parent's.
  ~HttplibServer() override {
    if (!thread_.joinable()) return;
    if (::getpid() != owner_) {
      thread_.detach();
      static_cast<void>(listener_.release());
      return;
    }
    over_ = true;
    listener_->end();
    while (!ended_ && !listener_->is_running()) {  // before, stop() would do nothing
      std::this_thread::sleep_for(milliseconds(1));
    }
    listener_->stop();
    thread_.join();
  }

  [[nodiscard]] Status start(const HttpAddress& address) {
    DRIFTLESS_RETURN_IF_ERROR(bind(address));
    const WithoutSignals quiet;
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
  // accept() may fail for want of descriptors: the library then gives up, and this binds again.
  void serve(const HttpAddress& address) {
    listener_->accept_here(port_);
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
