// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "collectives/mpi_rma/medium.h"
#include "mpi/scenario.h"

namespace driftless::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// One end of the road; on publishers also their group.
struct End {
  std::unique_ptr<MpiRmaWorld> world;
  std::unique_ptr<Group> group;
  std::unique_ptr<SendRoad> sender;
  std::unique_ptr<ReceiveRoad> receiver;
};

Result<End> open(MPI_Comm comm, unsigned publishers, const MpiRmaOptions& options) {
  End end;
  DRIFTLESS_ASSIGN_OR_RETURN(end.world, MpiRmaWorld::create(comm, publishers, options));
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_split(comm, end.world->publishes() ? 0 : 1, rank, &mine);
  if (end.world->publishes()) {
    DRIFTLESS_ASSIGN_OR_RETURN(end.group, make_mpi_group(mine));
    DRIFTLESS_ASSIGN_OR_RETURN(end.sender, end.world->sender());
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(end.receiver, end.world->receiver());
  }
  MPI_Comm_free(&mine);
  return end;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void compute(std::uint64_t ms) {
  const auto end = Clock::now() + milliseconds(ms);
  volatile std::uint64_t sum = 0;
  while (Clock::now() < end) sum = sum + 1;
}

// A receiver that takes every version in turn. True if it reached the last one.
bool follow(Scenario& s, End& end, std::uint64_t last, const Deadline* until = nullptr) {
  const std::string id = concat("receiver", end.world->rank());
  const auto deadline = [&] { return until != nullptr ? *until : s.soon(); };
  std::uint64_t bytes = 0;
  double busy = 0;
  for (std::uint64_t at = 0; at < last;) {
    Status status = end.receiver->wait_beyond(at, deadline());
    const auto begin = Clock::now();
    if (status.ok()) {
      const auto size = fetch_all(*end.receiver, step(at + 1), deadline());
      status = size.status();
      if (size.ok()) bytes += *size;
    }
    busy += seconds_since(begin);
    if (status.ok()) {
      ++at;
      status = end.receiver->report({id, at, "proof"}, deadline());
    }
    if (!status.ok()) {
      const bool wanted =
          s.options().expect_deadline && status.code() == StatusCode::kDeadlineExceeded;
      s.print(concat("at version ", at, ": ", status.to_string()));
      HOLDS(s, wanted);
      return false;
    }
  }
  s.print(concat("fetched ", bytes / 1'000'000, " MB at ", bytes / 1e9 / busy, " GB/s"));
  return true;
}

// All publishers. At the end the leader waits until all receivers have reported the last version.
void lead(Scenario& s, End& end, std::size_t receivers) {
  if (end.group->leads()) OK_OR_REPORT(s, end.sender->announce("run", s.soon()));
  for (std::uint64_t v = 1; v <= s.options().versions; ++v) {
    const Status status =
        publish(*end.sender, *end.group, step(v), 2, s.options().part_bytes, s.soon());
    if (!OK_OR_REPORT(s, status)) return;
    if (end.group->leads()) s.print(concat("published ", v));
    compute(s.options().compute_ms);
  }
  Status status;
  if (end.group->leads()) {
    status = wait_for_reports(*end.sender, receivers, s.options().versions, s.soon());
    if (s.options().expect_deadline) {
      s.print(status.to_string());
      HOLDS(s, status.code() == StatusCode::kDeadlineExceeded);
      return;
    }
    OK_OR_REPORT(s, status);
  }
  end.group->begin_epoch(~std::uint64_t{0});
  OK_OR_REPORT(s, end.group->broadcast("end", s.soon()).status());
}

void run_follow(Scenario& s, MPI_Comm comm) {
  MpiRmaOptions options;
  options.ring_bytes = std::uint64_t{1} << 30;
  options.ring_versions = 256;
  auto end = open(comm, s.options().publishers, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  int size = 0;
  MPI_Comm_size(comm, &size);
  if (end->world->publishes()) {
    lead(s, *end, static_cast<std::size_t>(size) - s.options().publishers);
  } else {
    const auto info = end->receiver->run_info(s.soon());
    if (OK_OR_REPORT(s, info.status())) HOLDS(s, *info == "run");
    const auto begin = Clock::now();
    follow(s, *end, s.options().versions);
    s.print(concat("followed for ", seconds_since(begin), " s"));
  }
  // A window that cannot be freed stays, but the destructor must still end.
  const auto begin = Clock::now();
  end->sender.reset();
  end->receiver.reset();
  end->group.reset();
  const Status closed = end->world->close();
  HOLDS(s, closed.ok() != s.options().expect_deadline);
  end->world.reset();
  HOLDS(s, seconds_since(begin) < 25);
}

void follow_scenario(Scenario& s) { run_follow(s, MPI_COMM_WORLD); }

// Further ranks of the world do not take part in the road.
void split_scenario(Scenario& s) {
  MPI_Comm comm = MPI_COMM_NULL;
  const bool takes_part = s.rank() != 0 && s.rank() != 3;
  MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 1 : 0, static_cast<int>(s.size() - s.rank()), &comm);
  if (takes_part) run_follow(s, comm);
  MPI_Comm_free(&comm);
}

// Without MPI_THREAD_MULTIPLE only the publisher's own calls make progress.
void level_scenario(Scenario& s) {
  int level = 0;
  MPI_Query_thread(&level);
  MpiRmaOptions options;
  options.ring_bytes = 1 << 22;
  auto end = open(MPI_COMM_WORLD, 1, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  HOLDS(s, end->world->threads() == (level == MPI_THREAD_MULTIPLE));
  if (end->world->publishes()) {
    for (std::uint64_t v = 1; v <= 5; ++v) {
      OK_OR_REPORT(s, publish(*end->sender, *end->group, step(v), 2, 10'000, s.soon()));
    }
    OK_OR_REPORT(s, wait_for_reports(*end->sender, s.size() - 1, 5, s.soon()));
  } else {
    follow(s, *end, 5);
  }
}

// A receiver is killed (mpirun --enable-recovery). The other processes continue, and do not wait
// for it at the end.
void killed_scenario(Scenario& s) {
  auto end = open(MPI_COMM_WORLD, 1, {.ring_bytes = 1 << 24});
  if (!OK_OR_REPORT(s, end.status())) return;
  if (end->world->publishes()) {
    for (std::uint64_t v = 1; v <= 50; ++v) {
      OK_OR_REPORT(s, publish(*end->sender, *end->group, step(v), 2, 100'000, s.soon()));
      OK_OR_REPORT(s, wait_for_reports(*end->sender, 1, v, s.soon()));
    }
  } else if (s.rank() == 1) {
    follow(s, *end, 50);
  } else {
    follow(s, *end, 5);
    ::raise(SIGKILL);
  }
  end->sender.reset();
  end->receiver.reset();
  const Status closed = end->world->close();
  if (HOLDS(s, closed.code() == StatusCode::kDeadlineExceeded)) s.print("went on without it");
}

// A receiver that sleeps until its version left the ring gets an error that names the anchor, and
// can take that.
void evict_scenario(Scenario& s) {
  MpiRmaOptions options;
  options.ring_bytes = 1 << 20;
  options.ring_versions = 4;
  options.anchor_bytes = 1 << 20;
  auto end = open(MPI_COMM_WORLD, 1, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  const bool slow = s.rank() == 2;
  if (end->world->publishes()) {
    OK_OR_REPORT(s, publish(*end->sender, *end->group, step(1), 2, 50'000, s.soon()));
    MPI_Barrier(MPI_COMM_WORLD);  // the slow one has the manifest of version 1
    for (std::uint64_t v = 2; v <= 12; ++v) {
      OK_OR_REPORT(s, publish(*end->sender, *end->group, step(v), 2, 50'000, s.soon()));
      OK_OR_REPORT(s, wait_for_reports(*end->sender, 1, v, s.soon()));
    }
    OK_OR_REPORT(s, publish(*end->sender, *end->group, anchor(12), 2, 200'000, s.soon()));
    MPI_Barrier(MPI_COMM_WORLD);
    OK_OR_REPORT(s, wait_for_reports(*end->sender, 2, 12, s.soon()));
    MPI_Barrier(MPI_COMM_WORLD);
  } else if (!slow) {
    MPI_Barrier(MPI_COMM_WORLD);
    follow(s, *end, 12);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    OK_OR_REPORT(s, end->receiver->wait_beyond(0, s.soon()));
    const auto manifest = end->receiver->fetch_manifest(step(1), s.soon());
    OK_OR_REPORT(s, manifest.status());
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (const PartReceipt& part : unpack(*manifest)) {
      const auto got = end->receiver->fetch_part(step(1), part, s.soon());
      HOLDS(s, got.status().code() == StatusCode::kNotFound);
      HOLDS(s, got.status().message().find("newest anchor") != std::string_view::npos);
    }
    const auto ids = end->receiver->list(s.soon());
    if (OK_OR_REPORT(s, ids.status())) {
      HOLDS(s, ids->size() <= 5 && ids->back() == anchor(12) && ids->front().version > 8);
    }
    OK_OR_REPORT(s, fetch_all(*end->receiver, anchor(12), s.soon()).status());
    OK_OR_REPORT(s, end->receiver->report({"slow", 12, ""}, s.soon()));
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// While a receiver reads the anchor, no other anchor replaces it; a receiver that has left holds
// nothing.
void hold_scenario(Scenario& s) {
  MpiRmaOptions options;
  options.ring_bytes = 1 << 20;
  options.anchor_bytes = 1 << 20;
  auto end = open(MPI_COMM_WORLD, 1, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  const auto meet = [] { MPI_Barrier(MPI_COMM_WORLD); };
  if (end->world->publishes()) {
    const auto try_anchor = [&](std::uint64_t v) {
      return publish(*end->sender, *end->group, anchor(v), 1, 1000, s.soon());
    };
    OK_OR_REPORT(s, try_anchor(1));
    meet();  // it fetches
    meet();
    const Status busy = try_anchor(2);
    HOLDS(s, busy.code() == StatusCode::kBusy);
    meet();  // it reports the version
    meet();
    OK_OR_REPORT(s, try_anchor(3));
    meet();  // it fetches again, and leaves
    meet();
    OK_OR_REPORT(s, try_anchor(4));
    HOLDS(s, try_anchor(4).code() == StatusCode::kAlreadyExists);
    meet();
  } else {
    meet();
    const auto manifest = end->receiver->fetch_manifest(anchor(1), s.soon());
    OK_OR_REPORT(s, manifest.status());
    meet();
    meet();
    for (const PartReceipt& part : unpack(*manifest)) {
      OK_OR_REPORT(s, end->receiver->fetch_part(anchor(1), part, s.soon()).status());
    }
    OK_OR_REPORT(s, end->receiver->report({"reader", 1, ""}, s.soon()));
    meet();
    meet();
    HOLDS(s, end->receiver->fetch_manifest(anchor(1), s.soon()).status().code() ==
                 StatusCode::kNotFound);
    OK_OR_REPORT(s, end->receiver->fetch_manifest(anchor(3), s.soon()).status());
    OK_OR_REPORT(s, end->receiver->leave(s.soon()));
    meet();
    meet();
    const auto ids = end->receiver->list(s.soon());
    if (OK_OR_REPORT(s, ids.status())) HOLDS(s, *ids == std::vector{anchor(4)});
  }
}

// Publishers overwrite a tiny ring as fast as they can, and receivers read as fast as they can. No
// receiver returns a torn read.
void torn_scenario(Scenario& s) {
  MpiRmaOptions options;
  options.ring_bytes = 3'000'000;
  options.ring_versions = 5;
  options.anchor_bytes = 2'000'000;
  auto end = open(MPI_COMM_WORLD, s.options().publishers, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  std::mt19937_64 random(s.rank() + 17);
  const std::uint64_t last = s.options().versions;
  if (end->world->publishes()) {
    std::mt19937_64 sizes(5);  // the same on all publishers
    for (std::uint64_t v = 1; v <= last; ++v) {
      const std::uint64_t bytes = 100'000 + sizes() % 400'000;
      if (!OK_OR_REPORT(s, publish(*end->sender, *end->group, step(v), 2, bytes, s.soon()))) break;
      if (v % 7 != 0) continue;
      const Status status = publish(*end->sender, *end->group, anchor(v), 1, bytes, s.soon());
      HOLDS(s, status.ok() || status.code() == StatusCode::kBusy);
      if (!status.ok()) OK_OR_REPORT(s, end->sender->abort());
    }
  } else {
    std::uint64_t whole = 0;
    std::uint64_t gone = 0;
    for (std::uint64_t newest = 0; newest < last;) {
      const auto ids = end->receiver->list(s.soon());
      if (!OK_OR_REPORT(s, ids.status())) break;
      if (ids->empty()) continue;
      for (const PublicationId& id : *ids) {
        if (id.kind == PublicationKind::kVersion) newest = std::max(newest, id.version);
      }
      const PublicationId id = random() % 4 != 0 ? ids->front() : (*ids)[random() % ids->size()];
      const auto got = fetch_all(*end->receiver, id, s.soon());
      if (got.ok()) {
        ++whole;
      } else if (HOLDS(s, got.status().code() == StatusCode::kNotFound)) {
        ++gone;
      } else {
        s.print(got.status().to_string());
      }
    }
    s.print(concat(whole, " fetched whole, ", gone, " gone while they were fetched"));
    HOLDS(s, whole > 0);
  }
}

// An error of MPI comes back as a status; a call that must not reach MPI is refused.
void error_scenario(Scenario& s) {
  auto medium = mpi_rma::Medium::create(MPI_COMM_WORLD, 1, {.ring_bytes = 1 << 20});
  if (!OK_OR_REPORT(s, medium.status())) return;
  const auto far = (*medium)->get(s.size() + 5, 0, 8, s.soon(), "get from nobody");
  HOLDS(s, far.status().code() == StatusCode::kIo);
  HOLDS(s, far.status().message().find("MPI_ERR_RANK") != std::string_view::npos);
  s.print(far.status().to_string());
  medium->reset();

  auto end = open(MPI_COMM_WORLD, 1, {.ring_bytes = 1 << 20});
  if (!OK_OR_REPORT(s, end.status())) return;
  if (end->world->publishes()) {
    OK_OR_REPORT(s, publish(*end->sender, *end->group, step(1), 2, 1000, s.soon()));
    HOLDS(s, end->world->receiver().status().code() == StatusCode::kInvalidArgument);
    HOLDS(s, publish(*end->sender, *end->group, anchor(1), 1, 10, s.soon()).code() ==
                 StatusCode::kUnsupported);
    const Status large =
        publish(*end->sender, *end->group, step(2), 1, std::uint64_t{1} << 21, s.soon());
    HOLDS(s, large.code() == StatusCode::kNoSpace);
    HOLDS(s, large.message().find("road.ring_size") != std::string_view::npos);
    s.print(large.to_string());
    OK_OR_REPORT(s, wait_for_reports(*end->sender, s.size() - 1, 1, s.soon()));
  } else {
    OK_OR_REPORT(s, end->receiver->wait_beyond(0, s.soon()));
    const auto manifest = end->receiver->fetch_manifest(step(1), s.soon());
    if (!OK_OR_REPORT(s, manifest.status())) return;
    const std::vector<PartReceipt> parts = unpack(*manifest);
    for (const std::uint64_t locator :
         {std::uint64_t{0}, std::uint64_t{1} << 40, ~std::uint64_t{0}, parts[0].locator + 64}) {
      PartReceipt wrong = parts[0];
      wrong.locator = locator;
      HOLDS(s, end->receiver->fetch_part(step(1), wrong, s.soon()).status().code() ==
                   StatusCode::kCorrupt);
    }
    PartReceipt nobody = parts[0];
    nobody.rank = 7;
    HOLDS(s, !end->receiver->fetch_part(step(1), nobody, s.soon()).ok());
    OK_OR_REPORT(s, end->receiver->report({concat("r", s.rank()), 1, ""}, s.soon()));
  }
}

// Worlds that cannot be made: every rank gets an error, and no rank waits for another.
void refuse_scenario(Scenario& s) {
  MpiRmaOptions options;
  options.ring_bytes = s.rank() == 1 ? 1 << 20 : 1 << 21;
  auto differ = MpiRmaWorld::create(MPI_COMM_WORLD, 1, options);
  HOLDS(s, differ.status().code() == StatusCode::kInvalidArgument);
  options.ring_bytes = 1 << 20;
  options.ring_versions = s.rank() == 1 ? 0 : 4;
  HOLDS(s, !MpiRmaWorld::create(MPI_COMM_WORLD, 1, options).ok());
  options.ring_versions = 4;
  options.ring_bytes = std::uint64_t{1} << 43;
  const auto huge = MpiRmaWorld::create(MPI_COMM_WORLD, 1, options);
  if (HOLDS(s, !huge.ok())) {
    s.print(huge.status().to_string());
    HOLDS(s, huge.status().code() == StatusCode::kNoSpace);
    HOLDS(s, huge.status().message().find("road.ring_size") != std::string_view::npos);
  }
  HOLDS(s, !MpiRmaWorld::create(MPI_COMM_WORLD, s.size() + 1, {}).ok());
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t pages = 0;
  file >> size >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Unused parts of a window take no memory.
void memory_scenario(Scenario& s) {
  MpiRmaOptions options;
  options.ring_bytes = std::uint64_t{3} << 30;  // two of them: past 32-bit offsets
  options.anchor_bytes = std::uint64_t{1} << 30;
  const std::uint64_t before = resident_bytes();
  auto end = open(MPI_COMM_WORLD, 2, options);
  if (!OK_OR_REPORT(s, end.status())) return;
  if (end->world->publishes()) {
    OK_OR_REPORT(s, publish(*end->sender, *end->group, anchor(0), 2, 1 << 20, s.soon()));
    OK_OR_REPORT(s, publish(*end->sender, *end->group, step(1), 2, 1 << 20, s.soon()));
    if (end->group->leads()) OK_OR_REPORT(s, wait_for_reports(*end->sender, 1, 1, s.soon()));
  } else {
    follow(s, *end, 1);
    OK_OR_REPORT(s, fetch_all(*end->receiver, anchor(0), s.soon()).status());
  }
  const std::uint64_t grown = resident_bytes() - before;
  s.print(concat(grown >> 20, " MiB more"));
  HOLDS(s, grown < (std::uint64_t{64} << 20));
}

// A silent rank delays the others only until their deadline.
void silent_scenario(Scenario& s) {
  auto group = make_mpi_group(MPI_COMM_WORLD);
  if (!OK_OR_REPORT(s, group.status())) return;
  (*group)->begin_epoch(1);
  const std::string large(5'000'000, 'x');  // does not fit MPI's own buffers
  if (s.rank() == 2) {
    std::this_thread::sleep_for(milliseconds(1500));
  } else {
    const auto begin = Clock::now();
    const auto all =
        (*group)->gather(concat("I am ", s.rank()), Deadline::after(milliseconds(300)));
    if (s.rank() == 0) {
      HOLDS(s, all.status().code() == StatusCode::kDeadlineExceeded);
      HOLDS(s, all.status().message().find("rank 2") != std::string_view::npos);
      s.print(all.status().to_string());
      const auto sent = (*group)->broadcast(large, Deadline::after(milliseconds(300)));
      HOLDS(s, sent.status().code() == StatusCode::kDeadlineExceeded);
      s.print(sent.status().to_string());
    } else {
      HOLDS(s, (*group)->broadcast("", s.soon()).ok());
    }
    HOLDS(s, seconds_since(begin) < 1.4);
  }
  (*group)->begin_epoch(2);  // all ranks are back
  const auto all = (*group)->gather(concat("I am ", s.rank()), s.soon());
  if (OK_OR_REPORT(s, all.status()) && s.rank() == 0) {
    HOLDS(s, all->size() == s.size() && all->back() == concat("I am ", s.size() - 1));
  }
  const auto received = (*group)->broadcast(large, s.soon());
  if (OK_OR_REPORT(s, received.status())) HOLDS(s, *received == large);
  MPI_Barrier(MPI_COMM_WORLD);
}

// A rank that does not destroy the world delays the others for ten seconds, not forever.
void farewell_scenario(Scenario& s) {
  auto end = open(MPI_COMM_WORLD, 1, {.ring_bytes = 1 << 20});
  if (!OK_OR_REPORT(s, end.status())) return;
  if (s.rank() == 1) std::this_thread::sleep_for(milliseconds(13'000));
  const auto begin = Clock::now();
  end = error(StatusCode::kNotFound, "closed");
  const double took = seconds_since(begin);
  s.print(concat("took ", took, " s"));
  HOLDS(s, took < 11.5);
}

}  // namespace

const std::map<std::string, ScenarioFunction>& all_scenarios() {
  static const std::map<std::string, ScenarioFunction> all{
      {"follow", follow_scenario}, {"split", split_scenario},       {"level", level_scenario},
      {"evict", evict_scenario},   {"hold", hold_scenario},         {"torn", torn_scenario},
      {"error", error_scenario},   {"refuse", refuse_scenario},     {"memory", memory_scenario},
      {"silent", silent_scenario}, {"farewell", farewell_scenario}, {"killed", killed_scenario}};
  return all;
}

}  // namespace driftless::testing
