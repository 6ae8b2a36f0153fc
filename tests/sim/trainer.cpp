// SPDX-License-Identifier: Apache-2.0
#include "sim/trainer.h"

#include <array>
#include <utility>

#include "formats/manifest.h"
#include "sim/step_road.h"
#include "support/faulty_road.h"
#include "support/weight_source.h"

namespace driftless::testing {

// The state that the ranks of one process share.
struct Trainer::Ranks {
  struct Rank {
    std::unique_ptr<SimFileSystem> fs;
    std::unique_ptr<Group> group;
    std::unique_ptr<SendRoad> sender;
    FaultyRoad* faults = nullptr;
    std::unique_ptr<ReceiveRoad> history;
  };
  std::array<Rank, 2> of;
  std::unique_ptr<LoopbackHub> mail;  // the ranks' group
  PublisherOptions options;
  std::uint64_t seed = 0;
  Weights weights;  // training continues from these
};

namespace {

// A number that was visible once must not be used again.
std::uint64_t highest_used(const SimDisk& disk) {
  constexpr std::string_view kPrefix = ".used_v";
  std::uint64_t highest = 0;
  for (const std::string& name : disk.list(std::string(kRoad))) {
    if (name.starts_with(kPrefix)) {
      highest = std::max<std::uint64_t>(highest, std::stoull(name.substr(kPrefix.size())));
    }
  }
  return highest;
}

}  // namespace

Trainer::Trainer(World& world, std::string name, Weights base, NotifiedEngine* notified)
    : world_(world),
      name_(std::move(name)),
      base_(std::move(base)),
      notified_(notified),
      weights_(base_) {
  world_.truth.add_base(base_);
}

void Trainer::start(std::uint64_t steps) {
  const auto ranks = std::make_shared<Ranks>();
  Random& random = world_.random;
  ranks->mail = std::make_unique<LoopbackHub>(LoopbackOptions{}, world_.ranks);
  ranks->seed = random.word();
  ranks->weights = weights_;
  ranks->options.threads = 1;
  ranks->options.deadline = kPublishDeadline;
  ranks->options.buffer_bytes = 64 + random.below(512);
  ranks->options.first_anchor = true;
  // At the end receivers join after the last version, so no later version would bring the anchor
  // that they request.
  ranks->options.anchor_every = world_.calm ? 1 : random.below(5);
  ranks->options.keep_versions = random.below(4);
  const std::array encodings{Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd,
                             Encoding::kCompact};
  // Only frames support `compact`.
  const bool frames = world_.layout == DirectoryLayout::kFrames && !world_.plain_deltas;
  ranks->options.encoding = encodings[random.below(encodings.size() - (frames ? 0 : 1))];
  ranks->options.layout = world_.layout;
  if (world_.layout == DirectoryLayout::kHfDelta) {
    ranks->options.encoding = random.chance(0.5) ? Encoding::kXor : Encoding::kOverwrite;
  }
  process_ = world_.simulation.start(
      name_, [this, ranks, steps](Process& process) { run_rank(process, ranks, 0, steps); });
  for (unsigned rank = 1; rank < world_.ranks; ++rank) {
    world_.simulation.start_fiber(process_, [this, ranks, rank, steps, process = process_] {
      run_rank(*process, ranks, rank, steps);
    });
  }
}

Status Trainer::open_roads(Ranks& ranks, unsigned rank, Process& process) {
  Ranks::Rank& mine = ranks.of.at(rank);
  mine.fs = std::make_unique<SimFileSystem>(world_.simulation, world_.disk, process);
  mine.group = ranks.mail->group(rank);
  std::unique_ptr<SendRoad> sender;
  if (world_.hub != nullptr) {
    sender = std::make_unique<StepSendRoad>(world_.simulation, world_.hub->sender(rank));
    mine.history = std::make_unique<StepReceiveRoad>(world_.simulation, world_.hub->receiver());
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(
        sender, make_shared_fs_sender(*mine.fs, world_.shared_fs, rank, world_.ranks));
    DRIFTLESS_ASSIGN_OR_RETURN(mine.history, make_shared_fs_receiver(*mine.fs, world_.shared_fs));
  }
  auto faulty = std::make_unique<FaultyRoad>(std::move(sender));
  mine.faults = faulty.get();
  mine.sender = std::move(faulty);
  return {};
}

void Trainer::run_rank(Process& process, const std::shared_ptr<Ranks>& ranks, unsigned rank,
                       std::uint64_t steps) {
  Status ended = open_roads(*ranks, rank, process);
  if (ended.ok()) ended = publish_all(*ranks, rank, steps);
  world_.simulation.trace(concat(process.name, " rank ", rank, " ends: ", ended.to_string()));
  Ranks::Rank& mine = ranks->of.at(rank);
  mine.history.reset();
  mine.sender.reset();
}

Status Trainer::publish_all(Ranks& ranks, unsigned rank, std::uint64_t steps) {
  Ranks::Rank& mine = ranks.of.at(rank);
  Simulation& simulation = world_.simulation;
  std::unique_ptr<Publisher> publisher;
  Status failed;
  MemorySource base(base_, rank, world_.ranks, 3);
  simulation.within(kPublishDeadline, "opening the publisher", [&] {
    auto opened =
        Publisher::open(ranks.options, *mine.group, *mine.sender, mine.history.get(), base);
    failed = opened.status();
    if (opened.ok()) publisher = std::move(*opened);
  });
  DRIFTLESS_RETURN_IF_ERROR(failed);
  const Hash128 run = publisher->version().run;
  if (rank == 0) {
    began_ = began_ || !publisher->resumed();
    if (!publisher->resumed()) world_.truth.add(run, 0, base_);  // a resumed run keeps its base
    simulation.trace(concat(name_, " publishes run ", to_hex(run).substr(0, 6), " from version ",
                            publisher->version().version));
  }
  const std::unique_ptr<EngineNotifier> notifier =
      notified_ != nullptr ? notified_->notifier(run) : nullptr;
  Weights weights = ranks.weights;
  Random pace(ranks.seed + rank);
  for (std::uint64_t step = 0; step < steps && !world_.ending; ++step) {
    DRIFTLESS_RETURN_IF_ERROR(simulation.step());
    weights = trained_weights(std::move(weights), ranks.seed + step);
    if (rank == 0) {
      // The next call settles a version in doubt: these weights may get the number after it.
      world_.truth.add(run, publisher->version().version + 1, weights);
      world_.truth.add(run, publisher->version().version + 2, weights);
      world_.truth.add(run, highest_used(world_.disk) + 1, weights);
      if (!world_.calm && pace.chance(0.08))
        mine.faults->arm(static_cast<RoadFault>(1 + pace.below(8)));
    }
    MemorySource source(weights, rank, world_.ranks, 3);
    Result<PublishReport> report = error(StatusCode::kInternal, "not called");
    const std::uint64_t wipes = world_.wipes;
    simulation.within(kPublishDeadline, "publish()", [&] { report = publisher->publish(source); });
    if (rank == 0) {
      simulation.trace(
          concat(name_, " publish: ",
                 report.ok() ? concat("version ", report->version) : report.status().to_string()));
      weights_ = weights;
      if (report.ok()) published_ = VersionId{run, report->version};
      world_.versions += report.ok() ? 1 : 0;
      // Since then the publication may have been removed or replaced.
      if (report.ok() && wipes == world_.wipes && !simulation.self().dead) {
        check_published(*report, run);
      }
      if (report.ok() && notifier != nullptr) notify(*notifier, *mine.fs, *published_);
    }
    simulation.sleep(pace.between(std::chrono::milliseconds(1), std::chrono::milliseconds(3'000)));
  }
  return {};
}

// An engine that reports success must have the version.
void Trainer::notify(EngineNotifier& notifier, FileSystem& fs, const VersionId& id) {
  const auto version = read_published_version(fs, kRoad, id.version);
  if (!version.ok()) return;
  std::vector<EngineResult> results;
  world_.simulation.within(kNotifyDeadline, "telling an engine", [&] {
    results = notifier.notify(*version, Deadline::after(kNotifyDeadline));
  });
  const Status result = results.at(0).status;
  world_.simulation.trace(concat(name_, " tells version ", id.version, ": ", result.to_string()));
  if (!result.ok() || world_.simulation.self().dead || notified_->serves(id)) return;
  if (notified_->started_anew()) return;
  world_.simulation.fail(concat("the engine said that it took version ", id.version));
}

// If publish() returns ok, receivers must find this publisher's version.
void Trainer::check_published(const PublishReport& report, const Hash128& run) {
  if (world_.hub != nullptr || world_.road_is_damaged) return;
  const std::string file =
      concat(kRoad, "/weight_v", version_string(report.version), "/manifest.json");
  const std::vector<std::byte> bytes = world_.disk.read(file);
  if (bytes.empty()) return;  // pruned
  const auto manifest =
      parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
  if (manifest.ok() && manifest->id.run == run && manifest->digest == report.digest) return;
  world_.simulation.fail(concat(name_, " said that it published version ", report.version,
                                ", but receivers find another's"));
}

}  // namespace driftless::testing
