// SPDX-License-Identifier: Apache-2.0
// The hub: an authenticated channel for small messages, through which the processes of a run find
// each other without a shared file system. The leading trainer has the Hub, each other process a
// Link to it. Messages arrive whole and in the order in which they were sent, or the link is lost.
//
// Roads use it for membership, manifests, reports and similar messages; the hub does not parse
// them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"

namespace driftless {

// The settings hub.address and hub.token_file.
struct HubOptions {
  // "host:port": the leading trainer listens there, the others connect to it. Empty: see resolve().
  std::string address = {};
  // The run's secret, at least 16 bytes, in a file that only its owner can read.
  std::string token_file = {};
};

}  // namespace driftless

namespace driftless::hub {

inline constexpr unsigned kDefaultPort = 27'315;
// Limit for a message; manifests and announcements of large models have some megabytes.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{256} << 20;

// Fills in the address: the given one or, if it is empty, the default port of `leader_host`, which
// is the host of rank 0 according to the launcher. kInvalidArgument if both are empty.
[[nodiscard]] Result<HubOptions> resolve(HubOptions options, std::string_view leader_host);

// kInvalidArgument without a token_file.
[[nodiscard]] Status check_token_file(const HubOptions& options);

struct HubEvent {
  enum class Kind : unsigned char { kCame, kMessage, kWent };
  Kind kind = Kind::kMessage;
  std::uint64_t peer = 0;  // never reused for another peer
  std::string text;        // the message, for kMessage
};

// The destructor ends every link. Messages sent before still arrive, unless the peer does not read
// them: the destructor waits for about a second at most.
class Hub {
 public:
  virtual ~Hub() = default;
  // Returns the events since the last call, in order. May wait until the deadline. One thread.
  [[nodiscard]] virtual std::vector<HubEvent> poll(const Deadline& deadline) = 0;
  // Sends without waiting: queues a message that cannot be sent now, and ignores a peer that is
  // gone. Thread-safe, like drop().
  virtual void send(std::uint64_t peer, std::string_view message) = 0;
  // Ends the link to a peer; poll() returns the event.
  virtual void drop(std::uint64_t peer) = 0;
  // Like drop(), but over TCP the link ends only once the peer's system has received all messages,
  // or after about a second. Does not wait.
  virtual void finish(std::uint64_t peer) { drop(peer); }
};

class Link {
 public:
  virtual ~Link() = default;
  // Thread-safe. kIo: the link is lost.
  [[nodiscard]] virtual Status send(std::string_view message, const Deadline& deadline) = 0;
  // The next message; empty if the deadline passed. kIo: the link is lost, and every message that
  // arrived before was returned; connect again. One thread. Call it after send() has failed, too:
  // the leader's last messages may still be there.
  [[nodiscard]] virtual Result<std::optional<std::string>> receive(const Deadline& deadline) = 0;
};

// Makes the first link, and a new one after a link was lost. Tries once. Any failure may be
// temporary: the leader does not listen yet, or is restarting. One thread.
using Connector = std::function<Result<std::unique_ptr<Link>>(const Deadline& deadline)>;

// A hub over TCP (library driftless_hub_tcp, which needs libcrypto). The leader listens only on
// options.address. A connecting process and the leader prove to each other that they have the run's
// token, by a challenge and HMAC-SHA256. After that each message carries an HMAC over its number
// and content, with a key of that connection. Nothing is encrypted. `bound` receives the address
// with the chosen port if options.address has port 0.
//
// Limits of the hub:
//   connections that have not yet proved the token: an eighth of the process's limit for
//     descriptors, but 64 to 512. If there are more, a new one replaces the oldest, once that is
//     250 ms old.
//   connections that have proved it: 4,096.
//   messages that peers have not read: 1 GiB; incomplete incoming messages: 1 GiB. Beyond that the
//     hub drops the peer with the most bytes.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_tcp_hub(const HubOptions& options,
                                                        std::string* bound = nullptr);
[[nodiscard]] Result<Connector> make_tcp_connector(const HubOptions& options);

// A hub in a directory that all processes see, owned by this user and closed to others (created so
// if it is missing). Every process that can write there is admitted. The hub takes over the
// directory of an earlier hub; kBusy if that one still runs.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_file_hub(const std::string& directory);
[[nodiscard]] Result<Connector> make_file_connector(const std::string& directory);

}  // namespace driftless::hub
