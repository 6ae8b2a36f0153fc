// SPDX-License-Identifier: Apache-2.0
// Many seeds of a simulated fleet, on several cores:
//   sim_night --seeds 1..10000 [--jobs N] [--contracts all] [--limit SECONDS]
// Prints a line for each seed that fails, with the command that repeats it, and a line of counts at
// the end. Exit 0: all held; 1: not all.
//
// A child process runs one seed after the other. The parent kills a child that exceeds the limit of
// a seed, records one that crashes, and starts another in its place. So a seed that hangs costs
// only its limit.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/fleet.h"

namespace driftless::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::uint64_t first = 1, last = 100;
  unsigned jobs = 0;
  unsigned limit_s = 120;  // of a seed
  SeedOptions seeds;
};

constexpr unsigned kMostJobs = 64;
constexpr rlim_t kMostMemory = rlim_t{8} << 30;  // of a child

// Shared by the parent and its children.
struct Counts {
  std::atomic<std::uint64_t> next, done, wrong, versions, commits;
  struct Worker {
    std::atomic<std::uint64_t> seed;
    std::atomic<std::int64_t> began_s;  // of the steady clock; 0: it has no seed
  } workers[kMostJobs];
};

std::int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
}

// One write, so that lines of several processes do not mix.
void print_failure(const Options& options, std::uint64_t seed, const std::string& what) {
  const bool all = options.seeds.contracts.stored_claims;
  const std::string line =
      concat("WRONG: simulated seed ", seed, ": ", what, "\n  repeat: build/bin/sim_night --seeds ",
             seed, "..", seed, all ? " --contracts all" : "", "\n");
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

void work(const Options& options, Counts& counts, Counts::Worker& mine) {
  const rlimit memory{kMostMemory, kMostMemory};
  (void)::setrlimit(RLIMIT_AS, &memory);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const bool one = options.first == options.last;
  for (std::uint64_t seed = counts.next++; seed <= options.last; seed = counts.next++) {
    mine.seed = seed;
    mine.began_s = seconds_now();
    const FleetResult result = run_fleet(seed, options.seeds);
    mine.began_s = 0;
    counts.versions += result.versions;
    counts.commits += result.commits;
    if (one) {
      for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    }
    if (!result.failure.empty()) {
      ++counts.wrong;
      print_failure(options, seed, result.failure);
    }
    ++counts.done;
  }
}

pid_t start_worker(const Options& options, Counts& counts, unsigned number) {
  counts.workers[number].began_s = 0;
  const pid_t child = ::fork();
  if (child != 0) return child;
  work(options, counts, counts.workers[number]);
  std::exit(0);  // runs destructors, which remove files
}

// If a worker ended during a seed, or exceeds the limit, its seed has failed. Returns whether the
// worker runs.
bool watch(const Options& options, Counts& counts, unsigned number, pid_t& child) {
  Counts::Worker& worker = counts.workers[number];
  const std::int64_t began = worker.began_s;
  const bool late = began != 0 && seconds_now() - began > options.limit_s;
  if (late) ::kill(child, SIGKILL);
  int status = 0;
  if (::waitpid(child, &status, late ? 0 : WNOHANG) != child) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
  ++counts.wrong;
  ++counts.done;
  print_failure(options, worker.seed,
                late ? concat("did not end in ", options.limit_s, " s")
                     : concat("its process ended with status ", status));
  child = start_worker(options, counts, number);
  return true;
}

int run(const Options& options) {
  void* const shared =
      ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto& counts = *new (shared) Counts{};
  counts.next = options.first;
  const auto began = Clock::now();
  std::printf("simulated: seeds %llu to %llu, %u at a time\n",
              static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(options.last), options.jobs);
  std::fflush(stdout);
  std::vector<pid_t> children(options.jobs);
  for (unsigned i = 0; i < options.jobs; ++i) children[i] = start_worker(options, counts, i);
  std::vector<bool> runs(options.jobs, true);
  while (std::find(runs.begin(), runs.end(), true) != runs.end()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (unsigned i = 0; i < options.jobs; ++i) {
      if (runs[i]) runs[i] = watch(options, counts, i, children[i]);
    }
  }
  const double minutes = std::chrono::duration<double>(Clock::now() - began).count() / 60;
  std::printf(
      "simulated: %llu seeds, %llu versions published, %llu commits, %.0f a minute: %llu wrong\n",
      static_cast<unsigned long long>(counts.done),
      static_cast<unsigned long long>(counts.versions),
      static_cast<unsigned long long>(counts.commits), static_cast<double>(counts.done) / minutes,
      static_cast<unsigned long long>(counts.wrong));
  const std::uint64_t wanted = options.last - options.first + 1;
  // A simulation in which nothing happens proves nothing.
  const bool moved = wanted < 20 || counts.commits > wanted;
  return counts.wrong == 0 && counts.done == wanted && moved ? 0 : 1;
}

bool parse_number(std::string_view text, auto& number) {
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && !text.empty();
}

std::optional<Options> parse(int count, char** arguments) {
  Options options;
  options.jobs = std::max(1U, std::thread::hardware_concurrency());
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = arguments[i], value = arguments[i + 1];
    if (name == "--seeds") {
      const auto dots = value.find("..");
      if (dots == std::string_view::npos || !parse_number(value.substr(0, dots), options.first) ||
          !parse_number(value.substr(dots + 2), options.last)) {
        return std::nullopt;
      }
    } else if (name == "--contracts" && value == "all") {
      options.seeds.contracts = Contracts::all();
    } else if (!(name == "--jobs" && parse_number(value, options.jobs)) &&
               !(name == "--limit" && parse_number(value, options.limit_s))) {
      return std::nullopt;
    }
  }
  const bool whole = count % 2 == 1 && options.first <= options.last;
  options.jobs = std::min<unsigned>(options.jobs, kMostJobs);
  return whole && options.jobs > 0 ? std::optional(options) : std::nullopt;
}

}  // namespace
}  // namespace driftless::testing

int main(int count, char** arguments) {
  using namespace driftless::testing;
  const auto options = parse(count, arguments);
  if (options) return run(*options);
  std::fprintf(stderr, "sim_night --seeds A..B [--jobs N] [--contracts all] [--limit SECONDS]\n");
  return 2;
}
