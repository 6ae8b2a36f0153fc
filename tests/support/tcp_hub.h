// SPDX-License-Identifier: Apache-2.0
// A TCP rendezvous on this host, at a port that the system chooses.
#pragma once

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "support/host_nccl_world.h"

namespace driftless::testing {

inline std::string write_token(const std::string& path, const std::string& secret,
                               unsigned mode = 0600) {
  std::ofstream(path) << secret << '\n';
  ::chmod(path.c_str(), mode);
  return path;
}

// The hub must be made first, because connectors use the port that it was bound to. Another hub
// then takes the same port.
inline HostRendezvous tcp_rendezvous(const std::string& token_file) {
  const auto bound = std::make_shared<std::string>();
  const HubOptions options{.address = "127.0.0.1:0", .token_file = token_file};
  return {[options, bound] {
            HubOptions here = options;
            if (!bound->empty()) here.address = *bound;
            return hub::make_tcp_hub(here, bound.get());
          },
          [options, bound] {
            HubOptions there = options;
            there.address = *bound;
            return hub::make_tcp_connector(there);
          }};
}

}  // namespace driftless::testing
