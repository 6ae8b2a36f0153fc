// SPDX-License-Identifier: Apache-2.0
// Sockets, and waits on them that end.
#pragma once

#include "collectives/road.h"
#include "core/descriptor.h"

namespace driftless::hub {

using Socket = Descriptor;

// "host:port", "[::1]:port". The name is looked up without a deadline of ours.
[[nodiscard]] Result<Socket> listen_on(const std::string& address, std::string* bound);
[[nodiscard]] Result<Socket> connect_to(const std::string& address, const Deadline& deadline);
// The numeric host part of the address by which this process reaches `address`: "10.0.0.2",
// "[::1]".
[[nodiscard]] Result<std::string> own_host_towards(const std::string& address);
// The next one that came; an empty Socket (-1) if none has. kNoSpace: this process has no
// descriptor left for it, and it waits.
[[nodiscard]] Result<Socket> accept_one(const Socket& listener);

// Waits for `events` (POLLIN, POLLOUT); false if the deadline passed.
[[nodiscard]] bool wait_for(const Socket& socket, short events, const Deadline& deadline);
// What can be had now, at most `most` bytes; empty: nothing at the moment. kIo: the other side is
// gone.
[[nodiscard]] Result<std::string> read_some(const Socket& socket, std::size_t most);
// How many bytes could be written now.
[[nodiscard]] Result<std::size_t> write_some(const Socket& socket, std::string_view bytes);
// Whether the other side's system has all that was written.
[[nodiscard]] bool is_delivered(const Socket& socket);
// Waits until the other side's system has all that was written. A socket that is closed with bytes
// unread drops what it has not delivered.
void wait_until_delivered(const Socket& socket, const Deadline& deadline);
// Exactly so many.
[[nodiscard]] Result<std::string> read_all(const Socket& socket, std::size_t size,
                                           const Deadline& deadline);
// Fills `into`; each piece has to come within `stall`.
[[nodiscard]] Status read_into(const Socket& socket, std::span<std::byte> into,
                               const Deadline& deadline, std::chrono::milliseconds stall);
[[nodiscard]] Status write_all(const Socket& socket, std::string_view bytes,
                               const Deadline& deadline);

}  // namespace driftless::hub
