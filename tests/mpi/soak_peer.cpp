// SPDX-License-Identifier: Apache-2.0
// One process of a soak among processes (tests/python/test_soak.py starts, stops and kills them):
// a publisher rank whose road fails at random, or a receiver that sleeps, forgets and joins again.
//
//   soak_peer trainer|receiver mpi_rma|hdf5 DIRECTORY VERSIONS SEED NUMBER
//
// A process writes each event at once, one line each, because it may be killed:
//   DIRECTORY/trainer_R.log     opened V | fault F on R | attempt V HASH, before every publish that
//                               may become version V | published V MS | failed V MS WHY |
//                               busy V WHY
//   DIRECTORY/receiver_N.log    started | joined | commit V HASH | anchor V HASH | held V HASH |
//                               failed WHY
//   DIRECTORY/trainer_R.pid, receiver_N.pid, receiver_N.done, and `last`, the version that the
//   receivers end at.
// A version that was sealed is never attempted again, so the last attempt of V is the content of V.
// HASH is over the bytes, and is not the digest. NUMBER: a receiver's number (over mpi_rma: by its
// rank); on a trainer, the number of receivers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/job/job_process.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/faulty_receive_road.h"
#include "support/faulty_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

struct Task {
  bool trains = false;
  std::string road, directory;
  std::uint64_t versions = 0, seed = 0;
  unsigned number = 0;
  // No process outlives the test, even if others died.
  Deadline until = Deadline::after(0ms);

  [[nodiscard]] std::string file(const std::string& name) const { return directory + "/" + name; }
};

Hash128 hash_of(const Weights& weights) {
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : weights) {
    all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return xxh3_128(all);
}

// The file appears whole, so a process that waits for its name may read it.
void put_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".tmp") << text;
  std::filesystem::rename(path + ".tmp", path);
}

class Log {
 public:
  explicit Log(const std::string& path) : file_(std::fopen(path.c_str(), "a")) {}
  ~Log() { std::fclose(file_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  template <typename... Parts>
  void print(const Parts&... parts) {
    const std::string line = concat(parts..., "\n");
    std::fwrite(line.data(), 1, line.size(), file_);
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
};

Config config_of(const Task& task) {
  Config config;
  const bool rma = task.road == "mpi_rma";
  config.road = rma ? "mpi_rma" : "shared_fs";
  config.layout_auto = config.encoding_auto = false;
  config.publisher.layout = rma ? DirectoryLayout::kFrames : DirectoryLayout::kHdf5;
  config.publisher.encoding = rma ? Encoding::kDeltas : Encoding::kDeltasZstd;
  config.publisher.threads = 1;
  config.publisher.buffer_bytes = 4096;
  config.publisher.first_anchor = true;
  config.publisher.anchor_every = 10;
  config.publisher.keep_versions = 5;
  config.publisher.deadline = 10s;
  config.connect_deadline = 20s;
  auto& windows = config.of_road<MpiRmaSettings>();
  windows.ring_versions = 6;  // so that a sleeping receiver falls out of the ring
  windows.ring_bytes = 1 << 20;
  windows.poll_longest = 20ms;
  windows.patience = 2s;
  auto& files = config.of_road<SharedFsOptions>();
  files.dir = task.file("road");
  files.poll_longest = 20ms;
  files.patience = 2s;
  return config;
}

// Two ranks take the same random decisions, each for its part of the weights.
class Trainer {
 public:
  Trainer(const Task& task, const Config& config, JobProcess& process, const Weights& base)
      : task_(task),
        options_(config.publisher),
        process_(process),
        base_(base),
        weights_(base),
        log_(task.file(concat("trainer_", process.rank(), ".log"))) {}

  Status run() {
    DRIFTLESS_ASSIGN_OR_RETURN(group_, process_.group());
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<SendRoad> road,
                               process_.sender(4 << 20, Deadline::after(20s)));
    road_ = std::make_unique<FaultyRoad>(std::move(road));
    DRIFTLESS_ASSIGN_OR_RETURN(history_, process_.history());
    options_.background = process_.threads();
    DRIFTLESS_RETURN_IF_ERROR(open());
    random_.seed(task_.seed * 1000 + version());  // a restart continues
    while (version() < task_.versions) {
      const bool again = random_() % 40 == 0;
      if (again && history_ != nullptr) DRIFTLESS_RETURN_IF_ERROR(open());
      DRIFTLESS_RETURN_IF_ERROR(step());
      std::this_thread::sleep_for(20ms);  // a step takes its time; the receivers get theirs
    }
    return end();
  }

 private:
  [[nodiscard]] std::uint64_t version() const { return publisher_->version().version; }

  Status open() {
    publisher_.reset();
    MemorySource source = offer(base_);
    DRIFTLESS_ASSIGN_OR_RETURN(publisher_,
                               Publisher::open(options_, *group_, *road_, history_.get(), source));
    log_.print("opened ", version());
    if (version() == 0) log_.print("attempt 0 ", to_hex(hash_of(base_)));
    return {};
  }

  // About every sixth version has a fault. Then the same weights are published again, whatever the
  // result was.
  Status step() {
    const double share = random_() % 20 == 0 ? 0.9 : 0.01;
    weights_ = changed_weights(weights_, random_(), share, "none");
    const auto fault = static_cast<RoadFault>(1 + random_() % 8);
    const unsigned where = random_() % process_.trainers();
    if (random_() % 6 == 0) {
      const bool leaders = fault >= RoadFault::kSeal;
      const unsigned rank = leaders ? 0 : where;
      log_.print("fault ", static_cast<int>(fault), " on ", rank);
      if (process_.rank() == rank) road_->arm(fault);
    }
    if (publish(version() + 1)) return {};
    // In doubt, or not published. If the version was sealed, these weights become the version after
    // it.
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (publish(version() + 2)) return {};
    }
    return error(StatusCode::kIo, "three publishes in a row failed");
  }

  bool publish(std::uint64_t perhaps) {
    log_.print("attempt ", perhaps, " ", to_hex(hash_of(weights_)));
    MemorySource source = offer(weights_);
    const auto began = std::chrono::steady_clock::now();
    const auto report = publisher_->publish(source);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    log_.print(report.ok() ? "published " : "failed ", report.ok() ? version() : perhaps, " ",
               took.count(), " ms ", report.ok() ? "" : report.status().to_string());
    return report.ok();
  }

  // A receiver that fell behind finds an anchor. Then the road stays open until all receivers are
  // done.
  Status end() {
    DRIFTLESS_RETURN_IF_ERROR(last_anchor());
    if (process_.rank() == 0) put_file(task_.file("last"), std::to_string(version()));
    for (unsigned number = 0; number < task_.number; ++number) {
      while (!std::filesystem::exists(task_.file(concat("receiver_", number, ".done")))) {
        DRIFTLESS_RETURN_IF_ERROR(task_.until.check("waiting for the receivers to end"));
        road_->progress();
        std::this_thread::sleep_for(5ms);
      }
    }
    publisher_.reset();
    road_.reset();
    history_.reset();
    group_.reset();
    return {};
  }

  // kBusy: a receiver that is stopped or dead was reading the anchor before.
  Status last_anchor() {
    for (const Deadline patience = Deadline::after(90s);;) {
      const Status made = publisher_->publish_anchor();
      if (made.ok() || made.code() == StatusCode::kAlreadyExists) return {};
      log_.print("busy ", version(), " ", made.to_string());
      if (patience.expired()) return made;
    }
  }

  [[nodiscard]] MemorySource offer(const Weights& weights) const {
    return {weights, process_.rank(), process_.trainers(), 3};
  }

  const Task& task_;
  PublisherOptions options_;
  JobProcess& process_;
  const Weights& base_;
  Weights weights_;
  std::mt19937_64 random_;
  Log log_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<FaultyRoad> road_;
  std::unique_ptr<ReceiveRoad> history_;
  std::unique_ptr<Publisher> publisher_;
};

class Rollout {
 public:
  Rollout(const Task& task, JobProcess& process, const Weights& base)
      : task_(task),
        process_(process),
        base_(base),
        random_(task.seed * 1000 + task.number * 100 + starts(log_path(task))),
        log_(log_path(task)) {}

  Status run() {
    log_.print("started");
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> road,
                               process_.receiver(Deadline::after(20s)));
    road_ = std::make_unique<FaultyReceiveRoad>(std::move(road), random_(), 0.02);
    while (!arrived()) {
      DRIFTLESS_RETURN_IF_ERROR(task_.until.check("following"));
      if (!receiver_ || random_() % 60 == 0) join();
      if (!receiver_) continue;
      if (random_() % 40 == 0) std::this_thread::sleep_for(200ms);  // falls behind
      follow();
    }
    const Status left = receiver_->leave();
    receiver_.reset();
    road_.reset();
    put_file(task_.file(concat("receiver_", task_.number, ".done")), "");
    return left;
  }

 private:
  static std::string log_path(const Task& task) {
    return task.file(concat("receiver_", task.number, ".log"));
  }
  // A receiver that was killed takes other decisions after its restart.
  static std::uint64_t starts(const std::string& path) {
    std::ifstream log(path);
    std::uint64_t count = 0;
    for (std::string line; std::getline(log, line);) count += line == "started" ? 1 : 0;
    return count;
  }

  [[nodiscard]] bool arrived() const {
    std::uint64_t last = 0;
    return std::ifstream(task_.file("last")) >> last && version_ == last;
  }

  // Joins with the base, or with nothing.
  void join() {
    receiver_.reset();
    target_.reset();
    version_ = 0;
    held_ = base_;
    std::vector<TensorSpec> specs;
    std::vector<std::byte*> data;
    for (auto& [name, tensor] : held_) {
      specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
      data.push_back(tensor.bytes.data());
    }
    layout_ = *WeightLayout::make(specs);
    const bool with_base = random_() % 2 == 0;
    auto target = make_memory_target(
        layout_, data, with_base ? std::optional<VersionId>(VersionId{}) : std::nullopt, 1);
    if (!target.ok()) return failed(target.status());
    target_ = std::move(*target);
    ReceiverOptions options;
    options.id = concat("receiver-", task_.number);
    options.fetch_deadline = 2s;
    options.threads = 1;
    options.pause = [this]() -> Status {
      return random_() % 50 == 0 ? error(StatusCode::kIo, "injected failure of pause") : Status();
    };
    auto opened = Receiver::open(options, *road_, *target_, Deadline::after(2s));
    if (!opened.ok()) return failed(opened.status());
    receiver_ = std::move(*opened);
    log_.print("joined");
  }

  void follow() {
    const auto staged = receiver_->stage(Deadline::after(50ms));
    if (!staged.ok()) return failed(staged.status());
    if (!*staged) return;
    const auto done = receiver_->commit();
    if (!done.ok()) {
      // After any failure the target holds a version, or reports that it holds none.
      const TargetState state = target_->state();
      if (state.valid) log_.print("held ", state.id.version, " ", to_hex(hash_of(held_)));
      return failed(done.status());
    }
    version_ = done->version;
    log_.print(done->anchor ? "anchor " : "commit ", version_, " ", to_hex(hash_of(held_)));
  }

  void failed(const Status& status) { log_.print("failed ", status.to_string()); }

  const Task& task_;
  JobProcess& process_;
  const Weights& base_;
  std::mt19937_64 random_;
  Log log_;
  std::uint64_t version_ = 0;
  WeightLayout layout_;
  Weights held_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

Status run(const Task& task) {
  const Config config = config_of(task);
  const JobRole role = task.trains ? JobRole::kTrainer : JobRole::kRollout;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobProcess> process,
      join_job(road_table(), config, role, Launch{.mpi = task.trains || task.road == "mpi_rma"}));
  const Weights base = random_weights(task.seed, 16);
  Task mine = task;
  if (!task.trains && task.road == "mpi_rma") mine.number = process->rank();
  put_file(task.file(task.trains ? concat("trainer_", process->rank(), ".pid")
                                 : concat("receiver_", mine.number, ".pid")),
           std::to_string(::getpid()));
  const Status done = task.trains ? Trainer(mine, config, *process, base).run()
                                  : Rollout(mine, *process, base).run();
  if (!done.ok()) {
    std::fprintf(stderr, "soak_peer: %s\n", done.to_string().c_str());
    process->abandon(1);
  }
  // A killed process does not call close(): the road's patience ends the wait.
  const Status closed = process->close(Deadline::after(2s));
  if (!closed.ok()) process->abandon(0);
  return {};
}

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fputs("soak_peer trainer|receiver mpi_rma|hdf5 DIRECTORY VERSIONS SEED NUMBER\n", stderr);
    return 2;
  }
  driftless::testing::Task task;
  task.trains = std::string_view(argv[1]) == "trainer";
  task.road = argv[2];
  task.directory = argv[3];
  task.versions = std::strtoull(argv[4], nullptr, 10);
  task.seed = std::strtoull(argv[5], nullptr, 10);
  task.number = static_cast<unsigned>(std::strtoul(argv[6], nullptr, 10));
  task.until = driftless::Deadline::after(std::chrono::seconds(60 + task.versions));
  const driftless::Status status = driftless::testing::run(task);
  if (!status.ok()) std::fprintf(stderr, "soak_peer: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
