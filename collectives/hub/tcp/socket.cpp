// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/tcp/socket.h"

#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>

namespace driftless::hub {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Status gone(std::string_view why) {
  return error(StatusCode::kIo, "hub: the other side of a connection is gone: ", why);
}

Result<Addresses> look_up(const std::string& address, bool to_listen) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size() || colon == 0) {
    return error(StatusCode::kInvalidArgument, "hub: expected host:port, found '", address, "'");
  }
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  // getaddrinfo() reduces a port above 65535 modulo 65536, which would lead to another service.
  std::uint16_t number = 0;
  const auto read = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool whole = read.ec == std::errc() && read.ptr == port.data() + port.size();
  if (!whole || (number == 0 && !to_listen)) {
    return error(StatusCode::kInvalidArgument, "hub: ", address, ": expected a port from ",
                 to_listen ? 0 : 1, " to 65535, found '", port, "'");
  }
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failure != 0) {
    return error(StatusCode::kInvalidArgument, "hub: ", address, ": ", ::gai_strerror(failure));
  }
  return Addresses(found, &::freeaddrinfo);
}

Socket open_for(const addrinfo& address) {
  return Socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                         address.ai_protocol));
}

void send_at_once(const Socket& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<std::string> name_of(const Socket& socket) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* address = reinterpret_cast<sockaddr*>(&local);
  if (::getsockname(socket.get(), address, &size) != 0 ||
      ::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return errno_status(errno, "getsockname");
  }
  const bool six = local.ss_family == AF_INET6;
  return concat(six ? "[" : "", host.data(), six ? "]:" : ":", port.data());
}

}  // namespace

Result<Socket> listen_on(const std::string& address, std::string* bound) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Addresses found, look_up(address, true));
  Socket socket = open_for(*found);
  const int on = 1;
  if (socket.get() < 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    return errno_status(errno, concat("hub: listening on ", address));
  }
  if (bound != nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(*bound, name_of(socket));
  }
  return socket;
}

Result<Socket> connect_to(const std::string& address, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Addresses found, look_up(address, false));
  int failure = 0;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Socket socket = open_for(*each);
    if (socket.get() < 0) continue;
    failure = ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) {
      if (!wait_for(socket, POLLOUT, deadline)) {
        return deadline.check(concat("hub: connecting to ", address));
      }
      socklen_t size = sizeof(failure);
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
    }
    if (failure == 0) {
      send_at_once(socket);
      return socket;
    }
  }
  return errno_status(failure, concat("hub: connecting to ", address)).with_context("no server");
}

Result<std::string> local_host_towards(const std::string& address) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Addresses found, look_up(address, false));
  // Sends no packet; the system only selects the interface.
  const Socket socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0 || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return errno_status(errno, concat("hub: no route to ", address));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, name_of(socket));
  return name.substr(0, name.rfind(':'));
}

Result<Socket> accept_one(const Socket& listener) {
  Socket socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() >= 0) {
    send_at_once(socket);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    return error(StatusCode::kNoSpace, "hub: no room for one more connection");
  }
  return socket;
}

bool wait_for(const Socket& socket, short events, const Deadline& deadline) {
  pollfd wait{socket.get(), events, 0};
  for (;;) {
    const auto left = deadline.remaining().count();
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<long long>(left, 1'000)));
    if (ready > 0) return true;
    if (left == 0) return false;
  }
}

Result<std::string> read_some(const Socket& socket, std::size_t most) {
  std::string bytes(std::min<std::size_t>(most, std::size_t{64} << 10), '\0');
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  if (got == 0) return gone("it closed the connection");
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::string();
    return gone(errno_status(errno, "recv").message());
  }
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

Result<std::size_t> write_some(const Socket& socket, std::string_view bytes) {
  if (bytes.empty()) return std::size_t{0};
  const ssize_t put = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (put >= 0) return static_cast<std::size_t>(put);
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return gone(errno_status(errno, "send").message());
}

bool is_delivered(const Socket& socket) {
  int left = 0;
  return ::ioctl(socket.get(), SIOCOUTQ, &left) != 0 || left <= 0;
}

void wait_until_delivered(const Socket& socket, const Deadline& deadline) {
  Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(5));
  while (!is_delivered(socket) && backoff.sleep(deadline)) continue;
}

Result<std::string> read_all(const Socket& socket, std::size_t size, const Deadline& deadline) {
  std::string bytes;
  while (bytes.size() < size) {
    if (!wait_for(socket, POLLIN, deadline)) return deadline.check("hub: reading");
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string more, read_some(socket, size - bytes.size()));
    bytes += more;
  }
  return bytes;
}

Status read_into(const Socket& socket, std::span<std::byte> into, const Deadline& deadline,
                 std::chrono::milliseconds stall) {
  while (!into.empty()) {
    const ssize_t got = ::recv(socket.get(), into.data(), into.size(), 0);
    if (got == 0) return gone("it closed the connection");
    if (got > 0) {
      into = into.subspan(static_cast<std::size_t>(got));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return gone(errno_status(errno, "recv").message());
    if (wait_for(socket, POLLIN, deadline.sooner(stall))) continue;
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("hub: reading"));
    return gone(concat("no byte came for ", stall.count(), " ms"));
  }
  return {};
}

Status write_all(const Socket& socket, std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t put, write_some(socket, bytes));
    bytes.remove_prefix(put);
    if (!bytes.empty() && !wait_for(socket, POLLOUT, deadline)) {
      return deadline.check("hub: writing");
    }
  }
  return {};
}

}  // namespace driftless::hub
