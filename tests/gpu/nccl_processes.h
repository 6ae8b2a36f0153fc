// SPDX-License-Identifier: Apache-2.0
// Processes of one road over NCCL, for programs that start their receivers themselves: the same
// binary, called with the directory to meet in and the receiver's name.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "collectives/nccl/nccl_road.h"
#include "kernels/device_hash.h"

extern char** environ;

namespace driftless::testing {

using std::chrono::milliseconds;

inline Deadline in_ms(int wait) { return Deadline::after(milliseconds(wait)); }

inline NcclOptions options_of() {
  NcclOptions options;
  options.ring_bytes = std::uint64_t{1} << 30;
  options.silence = milliseconds(4'000);
  options.hash = device_xxh3_128;
  return options;
}

// As distinct hosts, so that NCCL takes several ranks on one GPU.
inline void be_a_host(const std::string& name) {
  ::setenv("NCCL_HOSTID", name.c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

// The manifest of these tests: a line for each part.
inline std::string manifest_of(const std::vector<PartReceipt>& parts) {
  std::string text;
  for (const PartReceipt& part : parts) {
    text += concat(part.name, " ", part.rank, " ", part.size_bytes, " ", to_hex(part.hash), "\n");
  }
  return text;
}

inline Status check_version(ReceiveRoad& road, const PublicationId& id) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string manifest, road.fetch_manifest(id, in_ms(5'000)));
  std::istringstream lines(manifest);
  PartReceipt part;
  std::string hash;
  while (lines >> part.name >> part.rank >> part.size_bytes >> hash) {
    DRIFTLESS_ASSIGN_OR_RETURN(part.hash, hash128_from_hex(hash));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile got, road.fetch_part(id, part, in_ms(5'000)));
    if (xxh3_128(got.bytes()) != part.hash) {
      return error(StatusCode::kMismatch, part.name, " of ", to_string(id), " has other bytes");
    }
  }
  return {};
}

inline Status receive(const std::string& dir, const std::string& name) {
  be_a_host(name);
  const NcclOptions options = options_of();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<nccl::Fabric> fabric, make_nccl_fabric(options));
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector connector, hub::make_file_connector(dir));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<ReceiveRoad> road,
                             nccl::make_receiver(options, fabric, std::move(connector)));
  ReceiverReport report{name, 0, "there"};
  for (;;) {
    const Status reported = road->report(report, in_ms(2'000));
    const Status waited = road->wait_beyond(report.version, in_ms(200));
    if (!waited.ok()) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, road->list(in_ms(1'000)));
    for (const PublicationId& id : ids) {
      if (id.version < report.version) continue;
      const Status good = check_version(*road, id);
      report.version = id.version;
      report.proof = good.ok() ? "good" : "bad";
      if (!good.ok()) std::printf("%s: %s\n", name.c_str(), good.to_string().c_str());
    }
  }
}

class Child {
 public:
  Child(const std::string& self, const std::string& dir, const std::string& name) {
    std::string program = self, where = dir, who = name;
    char* arguments[] = {program.data(), where.data(), who.data(), nullptr};
    if (::posix_spawn(&pid_, self.c_str(), nullptr, nullptr, arguments, environ) != 0) pid_ = -1;
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  void kill() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace driftless::testing
