// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/job_names.h"

#include <unistd.h>

#include <array>
#include <cstdio>

namespace driftless {

std::string receiver_id(const Config& config, const JobProcess& process, unsigned rollout) {
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "_%02u", rollout);
  if (!config.receiver_id.empty()) {
    return config.receiver_id + (process.rollouts() > 1 ? number.data() : "");
  }
  if (process.together() || process.rollouts() > 1) return concat("rollout", number.data());
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return concat("rollout_", host.data(), "_", ::getpid());
}

std::string filled_in(std::string path, std::string_view role, unsigned rank) {
  const auto replace = [&](std::string_view word, std::string_view value) {
    for (std::size_t at = 0; (at = path.find(word, at)) != std::string::npos; at += value.size()) {
      path.replace(at, word.size(), value);
    }
  };
  replace("{role}", role);
  replace("{rank}", std::to_string(rank));
  return path;
}

}  // namespace driftless
