// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/hub.h"

namespace driftless::hub {

Result<HubOptions> resolve(HubOptions options, std::string_view leader_host) {
  if (!options.address.empty()) return options;
  if (leader_host.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "hub.address is missing: set it to host:port of the leading trainer; the launcher "
                 "does not name its host");
  }
  const bool six = leader_host.find(':') != std::string_view::npos;
  options.address = concat(six ? "[" : "", leader_host, six ? "]:" : ":", kDefaultPort);
  return options;
}

Status check_token_file(const HubOptions& options) {
  if (!options.token_file.empty()) return {};
  return error(StatusCode::kInvalidArgument,
               "hub.token_file is missing: the hub needs a file with the run's secret, readable by "
               "its owner alone; (umask 077; openssl rand -hex 32 > FILE) makes one");
}

}  // namespace driftless::hub
