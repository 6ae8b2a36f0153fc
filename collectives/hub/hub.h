// SPDX-License-Identifier: Apache-2.0
// The hub: an authenticated channel for small messages between the processes of a run that find
// each other without a shared file system. The leading trainer has the Hub, each other process a
// Link to it. Messages arrive whole and in the order in which they were sent, or the link is gone.
//
// Roads use it for membership, manifests, reports and the like; nothing here parses a message.
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

// As a configuration has them: hub.address, hub.token_file.
struct HubOptions {
  // "host:port": the leading trainer listens there, the others connect. Empty: resolve_hub().
  std::string address = {};
  // The secret of the run, at least 16 bytes, in a file that only its owner can read.
  std::string token_file = {};
};

}  // namespace driftless

namespace driftless::hub {

inline constexpr unsigned kDefaultPort = 27'315;
// No message is longer: manifests and announcements of large models are some megabytes.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{256} << 20;

// The options with an address: the one that is given, or the default port of `leader_host`, the
// host of rank 0 as the launcher gives it. kInvalidArgument if both are empty.
[[nodiscard]] Result<HubOptions> resolve(HubOptions options, std::string_view leader_host);

// kInvalidArgument without a token_file.
[[nodiscard]] Status check_token_file(const HubOptions& options);

struct HubEvent {
  enum class Kind : unsigned char { kCame, kSaid, kWent };
  Kind kind = Kind::kSaid;
  std::uint64_t peer = 0;  // never used again for another one
  std::string text;        // kSaid
};

// Its destructor ends every link. Messages that were sent before arrive first, unless the peer does
// not read them: the destructor waits for about a second at most.
class Hub {
 public:
  virtual ~Hub() = default;
  // The events since the last call, in order; waits for one. One thread.
  [[nodiscard]] virtual std::vector<HubEvent> poll(const Deadline& deadline) = 0;
  // Does not wait: a message that cannot be sent now is queued. A peer that is gone is ignored.
  // From any thread, like drop().
  virtual void send(std::uint64_t peer, std::string_view message) = 0;
  // Ends the link to a peer; poll() returns the event.
  virtual void drop(std::uint64_t peer) = 0;
  // drop(), over TCP once the peer's system has what was sent to it, or after about a second.
  virtual void finish(std::uint64_t peer) { drop(peer); }
};

class Link {
 public:
  virtual ~Link() = default;
  // From any thread. kIo: the link is gone.
  [[nodiscard]] virtual Status send(std::string_view message, const Deadline& deadline) = 0;
  // The next message; nothing if the deadline passed. kIo: the link is gone, and all messages that
  // came before were received; connect again. One thread. Call it after send() has failed, too: the
  // last messages of the leader may be there.
  [[nodiscard]] virtual Result<std::optional<std::string>> receive(const Deadline& deadline) = 0;
};

// Makes links: the first, and another after one was lost. Tries once. Any failure may pass: the
// leader does not listen yet, or is being restarted. One thread.
using Connector = std::function<Result<std::unique_ptr<Link>>(const Deadline& deadline)>;

// TCP (library driftless_hub_tcp, which needs libcrypto). The leader listens on options.address and
// nowhere else. A process that connects proves that it has the run's token by a challenge and
// HMAC-SHA256, and so does the leader. From then on each message carries an HMAC over its number
// and content, with a key of that connection. Nothing is encrypted. `bound` receives the address
// with the port that was chosen, if options.address has port 0. The hub holds at most 64
// to 512 connections that have not proved themselves (an eighth of the descriptors that the process
// may have), and drops the oldest of them for a new one; at most 4,096 that have; at most 1 GiB of
// messages that peers have not read, and as much of messages that have not come whole: beyond that
// it drops the peer with the most of them.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_tcp_hub(const HubOptions& options,
                                                        std::string* bound = nullptr);
[[nodiscard]] Result<Connector> make_tcp_connector(const HubOptions& options);

// A directory that all processes see, owned by this user and closed to others (created so if it is
// missing): the right to write there admits a process. The hub takes over what an earlier one left;
// kBusy if that one lives.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_file_hub(const std::string& directory);
[[nodiscard]] Result<Connector> make_file_connector(const std::string& directory);

}  // namespace driftless::hub
