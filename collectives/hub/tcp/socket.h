// SPDX-License-Identifier: Apache-2.0
// TCP sockets, and waits on them that end with a deadline.
#pragma once

#include "collectives/road.h"
#include "core/descriptor.h"

namespace driftless::hub {

using Socket = Descriptor;

// Listens on "host:port" or "[::1]:port". The name lookup is not bounded by a deadline.
[[nodiscard]] Result<Socket> listen_on(const std::string& address, std::string* bound);
[[nodiscard]] Result<Socket> connect_to(const std::string& address, const Deadline& deadline);
// The numeric host part of the address by which this process reaches `address`: "10.0.0.2",
// "[::1]".
[[nodiscard]] Result<std::string> local_host_towards(const std::string& address);
// Accepts the next connection; returns an empty Socket (-1) if there is none. kNoSpace: this
// process has no free descriptor, and the connection waits.
[[nodiscard]] Result<Socket> accept_one(const Socket& listener);

// Waits for `events` (POLLIN, POLLOUT); false if the deadline passed.
[[nodiscard]] bool wait_for(const Socket& socket, short events, const Deadline& deadline);
// Reads the bytes available now, at most `most`; empty: none at the moment. kIo: the other side is
// gone.
[[nodiscard]] Result<std::string> read_some(const Socket& socket, std::size_t most);
// Writes without waiting; returns the number of bytes written.
[[nodiscard]] Result<std::size_t> write_some(const Socket& socket, std::string_view bytes);
// Whether the other side's system has received all written bytes.
[[nodiscard]] bool is_delivered(const Socket& socket);
// Waits until the other side's system has received all written bytes. A socket closed with unread
// bytes drops what it has not delivered.
void wait_until_delivered(const Socket& socket, const Deadline& deadline);
// Reads exactly `size` bytes.
[[nodiscard]] Result<std::string> read_all(const Socket& socket, std::size_t size,
                                           const Deadline& deadline);
// Fills `into`; each piece must arrive within `stall`.
[[nodiscard]] Status read_into(const Socket& socket, std::span<std::byte> into,
                               const Deadline& deadline, std::chrono::milliseconds stall);
[[nodiscard]] Status write_all(const Socket& socket, std::string_view bytes,
                               const Deadline& deadline);

}  // namespace driftless::hub
