// SPDX-License-Identifier: Apache-2.0
// Port: one hub for several services of a run, so that all of them share an address: the group of
// the trainers, a road, its fallback. An admitted connection first names a service, and belongs to
// it from then on.
//
// The hub listens while the leading trainer serves at least one service. The port's own thread
// answers connections, even if a service does not poll. It holds at most 1 GiB of messages that
// services have not taken; beyond that it drops the peer with the most bytes.
#pragma once

#include "collectives/hub/hub.h"

namespace driftless::hub {

class Exchange;

class Port {
 public:
  using Listen = std::function<Result<std::unique_ptr<Hub>>()>;
  using Connect = std::function<Result<Connector>()>;
  Port(Listen listen, Connect connect) : listen_(std::move(listen)), connect_(std::move(connect)) {}

  // [leading trainer] Makes the hub of a service; the hub keeps the listener alive. kBusy if this
  // process already serves it. One thread at a time.
  [[nodiscard]] Result<std::unique_ptr<Hub>> serve(const std::string& service);
  // Makes links to a service of the leading trainer. A failure may be temporary even if the leader
  // listens: it may not serve this service yet.
  [[nodiscard]] Result<Connector> connector(const std::string& service) const;

 private:
  const Listen listen_;
  const Connect connect_;
  std::weak_ptr<Exchange> exchange_;  // the hubs of services own it
};

// A port over TCP (library driftless_hub_tcp). `bound`: as for make_tcp_hub(); must outlive the
// port.
[[nodiscard]] std::shared_ptr<Port> make_tcp_port(const HubOptions& options,
                                                  std::string* bound = nullptr);

}  // namespace driftless::hub
