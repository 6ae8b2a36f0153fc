// SPDX-License-Identifier: Apache-2.0
// Where the processes of the nccl road find each other, and what carries their small messages: a
// Hub at the leading publisher rank, a Link at everybody else. Messages arrive whole and in the
// order in which they were sent, or the link is gone.
//
// Made by nccl_road.h. Nothing here knows what messages mean.
#pragma once

#include <functional>

#include "collectives/nccl/nccl_options.h"
#include "collectives/road.h"

namespace driftless::nccl {

struct HubEvent {
  enum class Kind : unsigned char { kCame, kSaid, kWent };
  Kind kind = Kind::kSaid;
  std::uint64_t peer = 0;  // never used again for another one
  std::string text;        // kSaid
};

// Its end ends every link. What was sent before arrives there first, unless the peer does not take
// it: nobody is waited for for longer than about a second.
class Hub {
 public:
  virtual ~Hub() = default;
  // What has happened since, in order; waits for something to happen. One thread.
  [[nodiscard]] virtual std::vector<HubEvent> poll(const Deadline& deadline) = 0;
  // Does not wait: what cannot be sent now is queued. A peer that is gone is passed over. From any
  // thread, like drop().
  virtual void send(std::uint64_t peer, std::string_view message) = 0;
  // Ends the link to a peer; poll() tells of it.
  virtual void drop(std::uint64_t peer) = 0;
};

class Link {
 public:
  virtual ~Link() = default;
  // From any thread. kIo: the link is gone.
  [[nodiscard]] virtual Status send(std::string_view message, const Deadline& deadline) = 0;
  // The next message; nothing if the deadline passed. kIo: the link is gone, and all that came
  // before it was is received; connect again. One thread. Also to be called after send() has
  // failed: the last words may be there.
  [[nodiscard]] virtual Result<std::optional<std::string>> receive(const Deadline& deadline) = 0;
};

// Makes links: the first, and another after one was lost. Tries once. Any failure may pass: nobody
// listens yet, or the leader is being started again. One thread.
using Connector = std::function<Result<std::unique_ptr<Link>>(const Deadline& deadline)>;

// TCP, for jobs that mpirun did not start (library driftless_nccl_tcp, where libcrypto is). The
// leader listens on options.address and nowhere else. Who connects proves that it knows the run's
// token by a challenge and HMAC-SHA256, and so does the leader; from then on every message carries
// an HMAC over its number and content, with a key of that connection. Nothing is encrypted: what
// travels are names, sizes and hashes, the weights go by NCCL. `bound`: the address with the port
// that was chosen, where options.address has port 0. At most 64 connections that have not proved
// themselves are held; beyond that the oldest goes, so that silent strangers shut nobody out.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_tcp_hub(const RendezvousOptions& options,
                                                        std::string* bound = nullptr);
[[nodiscard]] Result<Connector> make_tcp_connector(const RendezvousOptions& options);

// A directory that all see, owned by this user and closed to others (made so if it is missing):
// who may write there is who takes part. The hub takes over what an earlier one left; kBusy if that
// one lives.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_file_hub(const RendezvousOptions& options);
[[nodiscard]] Result<Connector> make_file_connector(const RendezvousOptions& options);

}  // namespace driftless::nccl
