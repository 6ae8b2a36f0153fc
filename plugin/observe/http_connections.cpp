// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/http_connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "plugin/observe/http_server.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kDrainBytes = 64 << 10;
constexpr milliseconds kDrain{500};
constexpr milliseconds kLook{100};  // how often to check whether the server shall end

constexpr std::string_view kBusy =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
constexpr std::string_view kTooLong =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n"
    "Content-Length: 0\r\n\r\n";
constexpr std::string_view kBad =
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

void send_at_once(int socket, std::string_view bytes) {
  static_cast<void>(::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

// False: the deadline passed, or the server shall end.
bool wait_to_send(int socket, const Deadline& deadline, const std::atomic<bool>& over) {
  pollfd watched{socket, POLLOUT, 0};
  for (;;) {
    const milliseconds wait = std::min(deadline.remaining(), kLook);
    const int ready = ::poll(&watched, 1, static_cast<int>(wait.count()));
    if (ready > 0) return true;
    if ((ready < 0 && errno != EINTR) || over || deadline.expired()) return false;
  }
}

void send_all(int socket, const std::atomic<bool>& over, std::string_view bytes) {
  Deadline deadline = Deadline::after(HttpServer::kPatience);
  const Deadline all = Deadline::after(2 * HttpServer::kPatience);
  while (!bytes.empty() && !all.expired() && wait_to_send(socket, deadline, over)) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    deadline = Deadline::after(HttpServer::kPatience);
  }
}

bool is_probe(std::string_view request) {
  for (const std::string_view line : {"GET /ready", "HEAD /ready"}) {
    if (!request.starts_with(line)) continue;
    const char next = request[line.size()];
    return next == ' ' || next == '?';
  }
  return false;
}

}  // namespace

Status HttpConnections::start() {
  wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return errno_status(errno, "eventfd");
  try {
    threads_.emplace_back([this] { read(); });
    threads_.emplace_back([this] { work(probes_, false); });
    for (unsigned i = 0; i < HttpServer::kThreads; ++i) {
      threads_.emplace_back([this] { work(others_, true); });
    }
  } catch (const std::system_error& failed) {
    end();
    return error(StatusCode::kInternal, "no thread started: ", failed.what());
  }
  return {};
}

void HttpConnections::end() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    probes_.changed.notify_all();
    others_.changed.notify_all();
  }
  wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HttpConnections::wake() const {
  if (!wake_.valid()) return;
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

void HttpConnections::add(Descriptor socket) {
  come_back({std::move(socket), Deadline::after(HttpServer::kPatience)});
}

void HttpConnections::come_back(Connection connection) {
  const std::scoped_lock lock(mutex_);
  if (over_ || coming_.size() >= 2 * HttpServer::kReading) return;
  coming_.push_back(std::move(connection));
  wake();
}

// Closing a socket with unread input resets the connection, and the answer may be lost with it: so
// first only shut down the sending side.
void HttpConnections::close_after(Descriptor socket, std::string_view answer) {
  send_at_once(socket.get(), answer);
  ::shutdown(socket.get(), SHUT_WR);
  come_back({std::move(socket), Deadline::after(kDrain), {}, true});
}

void HttpConnections::read() {
  while (!over_) {
    try {
      look();
    } catch (const std::exception&) {  // out of memory: all connections are closed
      open_.clear();
    }
  }
  open_.clear();
}

void HttpConnections::look() {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
  for (const Connection& each : open_) watched.push_back({each.socket.get(), POLLIN, 0});
  const milliseconds wait = open_.empty() ? HttpServer::kPatience : kLook;
  static_cast<void>(::poll(watched.data(), watched.size(), static_cast<int>(wait.count())));
  std::size_t at = 0;
  std::erase_if(open_, [&](Connection& each) {
    const bool ready = watched[++at].revents != 0;
    return (ready && !read_some(each)) || each.until.expired();
  });
  std::uint64_t ignored = 0;
  static_cast<void>(::read(wake_.get(), &ignored, sizeof(ignored)));
  std::deque<Connection> coming;
  {
    const std::scoped_lock lock(mutex_);
    coming.swap(coming_);
  }
  for (Connection& each : coming) {
    if (!each.answered && !read_some(each)) continue;
    if (open_.size() == HttpServer::kReading) {  // drop the connection that has waited longest
      if (!open_.front().answered) send_at_once(open_.front().socket.get(), kBusy);
      open_.pop_front();
    }
    open_.push_back(std::move(each));
  }
}

bool HttpConnections::read_some(Connection& connection) {
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::recv(connection.socket.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    if (connection.answered) {
      connection.drained += static_cast<std::size_t>(got);
      return connection.drained < kDrainBytes;
    }
    std::string& text = connection.request;
    const std::size_t look = text.size() < 3 ? 0 : text.size() - 3;
    text.append(piece.data(), static_cast<std::size_t>(got));
    const std::size_t end = text.find("\r\n\r\n", look);
    if (end != std::string::npos) text.resize(end + 4);  // ignore a body or a second request
    if (text.size() > HttpServer::kHeaderBytes) {
      close_after(std::move(connection.socket), kTooLong);
      return false;
    }
    if (end == std::string::npos) continue;
    dispatch(connection);
    return false;
  }
}

void HttpConnections::dispatch(Connection& connection) {
  std::string& text = connection.request;
  // Code that compares C strings would stop at the NUL byte.
  if (text.find('\0') != std::string::npos) {
    return close_after(std::move(connection.socket), kBad);
  }
  Lane& lane = is_probe(text) ? probes_ : others_;
  {
    const std::scoped_lock lock(mutex_);
    if (lane.waiting.size() < HttpServer::kWaiting) {
      lane.waiting.push_back({std::move(connection.socket), std::move(text)});
      lane.changed.notify_one();
      return;
    }
  }
  close_after(std::move(connection.socket), kBusy);
}

void HttpConnections::work(Lane& lane, bool waits) {
  for (;;) {
    std::unique_lock lock(mutex_);
    lane.changed.wait(lock, [&] { return over_ || !lane.waiting.empty(); });
    if (over_) return;
    Request request = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    lock.unlock();
    try {
      const std::string answer = answer_(std::move(request.text), request.socket.get());
      if (waits) send_all(request.socket.get(), over_, answer);
      close_after(std::move(request.socket), waits ? std::string_view() : answer);
    } catch (const std::exception&) {  // out of memory: the connection is closed
    }
  }
}

}  // namespace driftless
