// SPDX-License-Identifier: Apache-2.0
// Checks this host: limits, memory, cores, temporary space, ports, and files with secrets.
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "core/descriptor.h"
#include "core/disk_space.h"
#include "core/secret_file.h"
#include "core/setting_values.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;

constexpr rlim_t kFewFiles = 256, kEnoughFiles = 1024;
constexpr std::chrono::milliseconds kHubWait(3'000);
constexpr std::uint64_t kLittleTemporary = std::uint64_t{1} << 30;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "no limit" : std::to_string(limit);
}

// The number in a kernel file, after the text `after` if that is given; nothing if the file does
// not exist or contains "max".
std::optional<std::uint64_t> number_in(const std::string& path, std::string_view after = {}) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::string_view text = line;
    if (!text.starts_with(after)) continue;
    text.remove_prefix(after.size());
    text.remove_prefix(std::min(text.find_first_not_of(" \t:"), text.size()));
    std::uint64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc()) {
      return number;
    }
  }
  return std::nullopt;
}

void check_files(const Report& report) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const bool few = files.rlim_cur < kFewFiles, some = files.rlim_cur < kEnoughFiles;
  report({"open files", few ? kFail : (some ? kWarn : kOk), limit_text(files.rlim_cur),
          some ? "raise it: ulimit -n 4096" : ""});
}

// The limit on locked memory counts memory registered by RDMA networks, too.
void check_locked_memory(const Report& report) {
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) != 0) return;
  const bool rdma = ::access("/sys/class/infiniband", F_OK) == 0;
  const bool limited = locked.rlim_cur != RLIM_INFINITY;
  const std::string text =
      limited ? about(static_cast<std::uint64_t>(locked.rlim_cur)) : "no limit";
  report(
      {"locked memory", rdma && limited ? kWarn : kOk,
       concat(text, rdma ? ", and there is RDMA hardware" : ""),
       rdma && limited ? "raise it: ulimit -l unlimited (windows and rings are registered)" : ""});
}

void check_memory(const Context& context, const Report& report) {
  const std::uint64_t kib = number_in("/proc/meminfo", "MemAvailable").value_or(0);
  std::uint64_t bytes = kib << 10;
  std::string text = concat(about(bytes), " available");
  auto limit = number_in("/sys/fs/cgroup/memory.max");
  auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit) limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  if (!used) used = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  if (limit && used && *limit < (std::uint64_t{1} << 60)) {
    const std::uint64_t left = *limit > *used ? *limit - *used : 0;
    text += concat(", ", about(left), " left of the control group's ", about(*limit));
    bytes = std::min(bytes, left);
  }
  // A snapshot on the host and a target in memory each hold all weights once.
  const std::uint64_t weights = context.checkpoint_bytes();
  const bool little = weights > bytes;
  report({"memory", little ? kWarn : kOk,
          concat(text, weights == 0 ? "" : concat(", the weights take ", about(weights))),
          little ? "use snapshot: none or device, or a host with more memory" : ""});
}

void check_cores(const Context& context, const Report& report) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  const long mine = known ? CPU_COUNT(&set) : online;
  std::string text = concat(mine, " of ", online, " for this process");
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  const bool limited = static_cast<bool>(file >> quota >> period) && period > 0;
  if (limited) text += concat(", ", number_text(quota / period), " by the control group");
  const long threads = static_cast<long>(context.config.publisher.threads);
  const double least =
      limited ? std::min(static_cast<double>(mine), quota / period) : static_cast<double>(mine);
  const bool few = least < static_cast<double>(std::max(threads, 2L));
  report(
      {"cores", few ? kWarn : kOk, concat(text, threads > 0 ? concat("; threads: ", threads) : ""),
       few ? "leave a core to each process: widen its affinity (mpirun --bind-to none), or lower "
             "threads"
           : ""});
}

void check_temporary(const Context& context, const Report& report) {
  const std::string path = context.variables("TMPDIR").value_or("/tmp");
  const Result<DiskSpace> space = disk_space(path);
  if (!space.ok()) {
    return report(failed("temporary", space.status(), "set TMPDIR to a directory that is there"));
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    return report(
        {"temporary", kFail, concat(path, ": not writable"), "set TMPDIR to another one"});
  }
  const bool little = space->free_bytes < kLittleTemporary;
  report({"temporary", little ? kWarn : kOk,
          concat(path, ": ", about(space->free_bytes), " free, ", space->kind),
          little ? "free space there, or set TMPDIR (large parts are spooled)" : ""});
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Resolves "host:port"; null, and reported, if that fails.
Addresses find_addresses(const std::string& key, const std::string& address, const Report& report) {
  Addresses found;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return found;
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int problem = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                    address.substr(colon + 1).c_str(), &hints, &list);
  if (problem == 0) {
    found.reset(list);
  } else {
    report({key, kFail, concat(address, ": ", ::gai_strerror(problem)), concat("correct ", key)});
  }
  return found;
}

// 0, or the error number if this host cannot listen there.
int try_to_bind(const addrinfo& at) {
  const Descriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int reuse = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  return ::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
}

// 0, or the error number if no connection is accepted there.
int try_to_connect(const addrinfo& at, std::chrono::milliseconds wait) {
  const Descriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(socket.get(), at.ai_addr, at.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd event{socket.get(), POLLOUT, 0};
  if (::poll(&event, 1, static_cast<int>(wait.count())) <= 0) return ETIMEDOUT;
  int why = 0;
  socklen_t size = sizeof(why);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &why, &size);
  return why;
}

// Checks whether this host can listen on "host:port".
void check_port(const std::string& key, const std::string& address, const Report& report) {
  const Addresses found = find_addresses(key, address, report);
  if (found == nullptr) return;
  const int why = try_to_bind(*found);
  report(
      {key, why == 0 ? kOk : kFail,
       why == 0 ? concat(address, " is free") : std::string(errno_status(why, address).message()),
       why == 0 ? "" : concat("end the process that listens there, or set another ", key)});
}

// Checks the hub: the leading trainer listens there, and all other processes connect.
void check_hub(const std::string& address, const Report& report) {
  const std::string key = "hub.address";
  const Addresses found = find_addresses(key, address, report);
  if (found == nullptr) return;
  if (try_to_connect(*found, kHubWait) == 0) {
    return report({key, kOk, concat(address, ": a process listens there"),
                   "if the trainer is not started yet, another program has the port"});
  }
  const int why = try_to_bind(*found);
  if (why == 0) return report({key, kOk, concat(address, " is free on this host")});
  const bool elsewhere = why == EADDRNOTAVAIL;
  report({key, elsewhere ? kWarn : kFail,
          elsewhere ? concat(address, " is another host's, and no process answers there")
                    : std::string(errno_status(why, address).message()),
          elsewhere ? "start the leading trainer, then look again; else let the port through"
                    : concat("set another ", key)});
}

void check_settings(const Context& context, const Report& report) {
  if (!context.configured) return;
  for (const auto& [key, value] : effective_settings(context.config)) {
    if (key == "monitor.address" && !value.empty()) check_port(key, value, report);
    if (key == "hub.address" && !value.empty()) check_hub(value, report);
    if (!key.ends_with("token_file") || value.empty()) continue;
    const Result<std::string> secret = read_secret_file(value);
    report(secret.ok() ? Finding{key, kOk, concat(value, ": closed to others")}
                       : failed(key, secret.status(),
                                secret.status().code() == StatusCode::kNotFound
                                    ? concat("make it: (umask 077; openssl rand -hex 32 > ", value,
                                             "), and copy it to every host")
                                    : concat("chmod 600 ", value)));
  }
}

void check_umask(const Report& report) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool open = (mask & S_IWOTH) == 0;
  report({"umask", open ? kWarn : kOk,
          open ? "every user may write what this one makes" : "others may not write",
          open ? "umask 022: versions and checkpoints are trusted by their directories" : ""});
}

}  // namespace

void check_host(const Context& context, const Report& report) {
  check_cores(context, report);
  check_memory(context, report);
  check_files(report);
  check_locked_memory(report);
  check_temporary(context, report);
  check_umask(report);
  check_settings(context, report);
}

}  // namespace driftless::doctor
