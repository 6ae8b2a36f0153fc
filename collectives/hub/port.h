// SPDX-License-Identifier: Apache-2.0
// Port: one hub for several services of a run, so that all of them share an address: groups of the
// trainers, a road, the road that takes its place. A connection that was admitted names a service
// first, and belongs to it from then on.
//
// The hub listens while the leading trainer serves anything. A thread of the port's own answers
// connections from then on, also while a service is not looked at. It holds at most 1 GiB of
// messages that services have not taken; beyond that it drops the peer with the most of them.
#pragma once

#include "collectives/hub/hub.h"

namespace driftless::hub {

class Exchange;

class Port {
 public:
  using Listen = std::function<Result<std::unique_ptr<Hub>>()>;
  using Connect = std::function<Result<Connector>()>;
  Port(Listen listen, Connect connect) : listen_(std::move(listen)), connect_(std::move(connect)) {}

  // [leading trainer] The hub of a service. It keeps what listens. kBusy if this process serves it
  // already. One thread at a time.
  [[nodiscard]] Result<std::unique_ptr<Hub>> serve(const std::string& service);
  // Links to a service of the leading trainer. Its failures may pass, too, if the leader listens
  // and does not serve it: it may soon.
  [[nodiscard]] Result<Connector> connector(const std::string& service) const;

 private:
  const Listen listen_;
  const Connect connect_;
  std::weak_ptr<Exchange> exchange_;  // services hold it
};

// TCP (library driftless_hub_tcp). `bound`: make_tcp_hub()'s; outlives the port.
[[nodiscard]] std::shared_ptr<Port> make_tcp_port(const HubOptions& options,
                                                  std::string* bound = nullptr);

}  // namespace driftless::hub
