// SPDX-License-Identifier: Apache-2.0
// PartServer: serves the parts in a PartStore to processes that have the run's token, over TCP and,
// on this host, over an abstract Unix socket that passes descriptors of their memory.
//
// A connection proves the token by the hub's challenge (hub/tcp/authentication.h), with a key
// derived from it. Requests and the heads of answers carry an HMAC. The bytes of parts do not: the
// hashes in the manifest, which came over the hub, prove them.
//
// A NIXL reader asks for a part's place, reads it by itself (nixl_places.h), and reports when it is
// done. The server keeps the part until then, or until the reader has been silent for
// PeerOptions::stall.
//
// Each admitted connection has a thread; at most PeerOptions::readers are served at once. Further
// ones wait, and take the place of one without requests. A reader that takes no byte for
// PeerOptions::stall is dropped. Nothing here waits for the trainer, and the trainer never waits
// for a reader.
#pragma once

#include <list>
#include <mutex>
#include <thread>

#include "collectives/hub/tcp/socket.h"
#include "collectives/peer/message.h"
#include "collectives/peer/nixl_places.h"
#include "collectives/peer/part_memory.h"
#include "collectives/peer/peer_options.h"

namespace driftless::peer {

// The secret of data connections, derived from the run's token.
[[nodiscard]] Result<std::string> data_token(const std::string& token_file);
// Connects to an abstract Unix socket; kInvalidArgument if the name is too long.
[[nodiscard]] Result<hub::Socket> connect_to_local(const std::string& name,
                                                   const Deadline& deadline);

class PartServer {
 public:
  // Throws std::system_error if no thread can be created.
  PartServer(const PeerOptions& options, Endpoint endpoint, std::string token,
             std::vector<hub::Socket> listeners, Descriptor wake, std::shared_ptr<PartStore> store,
             std::unique_ptr<NixlPlaces> nixl);
  ~PartServer();  // ends all connections
  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }

 private:
  struct Connection {
    hub::Socket socket;
    bool local = false;
    bool admitted = false;
    bool over = false;
    Deadline may_stay_until = Deadline::after(std::chrono::milliseconds(250));
    std::optional<Deadline::Clock::time_point> idle_since = {};  // set after admission
    std::thread thread;
  };

  void accept_all();
  [[nodiscard]] bool make_room();
  void end_idle();
  void note_idle(Connection& connection, bool idle);
  void serve(Connection& connection);
  [[nodiscard]] Status admit(Connection& connection, std::string* key);
  [[nodiscard]] Status serve_requests(Connection& connection, const std::string& key);
  [[nodiscard]] Status send_part(const Connection& connection, const Want& want,
                                 const StoredPart& part);
  // The place for a reader that reads by itself.
  [[nodiscard]] Result<std::string> place_of(const Want& want, const StoredPart& part);

  const PeerOptions options_;
  const Endpoint endpoint_;
  const std::string token_;
  const std::vector<hub::Socket> listeners_;
  const Descriptor wake_;  // an eventfd that ends the wait for connections
  const std::shared_ptr<PartStore> store_;
  const std::unique_ptr<NixlPlaces> nixl_;  // null: it does not serve through NIXL
  std::mutex mutex_;
  std::list<Connection> connections_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // started last
};

// Listens as the options state; `reached_by`: the host part of an address of this process.
[[nodiscard]] Result<std::unique_ptr<PartServer>> make_part_server(
    const PeerOptions& options, unsigned rank, const std::string& reached_by,
    std::shared_ptr<PartStore> store);

}  // namespace driftless::peer
