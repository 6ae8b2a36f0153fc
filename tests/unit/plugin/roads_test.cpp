// SPDX-License-Identifier: Apache-2.0
// To add a road takes a folder and a row: a toy road is added to a table, and a trainer and a
// rollout use it like any other; a second variant has settings and a library that is loaded (docs:
// adding a road). Also the messages about roads that are missing.
#include "plugin/job/roads.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "formats/records.h"
#include "plugin/job/joined_road.h"
#include "plugin/job/publisher_session.h"
#include "plugin/job/road_rows.h"
#include "support/loopback_road.h"
#include "support/toy_kind.h"
#include "support/toy_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::changed_weights;
using testing::MemorySource;
using testing::random_weights;
using testing::ToyMedium;
using testing::ToyReceiver;
using testing::ToySender;
using testing::Weights;

std::shared_ptr<ToyMedium>& toy() {
  static auto medium = std::make_shared<ToyMedium>();
  return medium;
}

std::optional<RoadPlace> opened_at;  // by open_toy(), last

Result<OpenRoad> open_toy(const RoadOptions&, const RoadPlace& place) {
  opened_at = place;
  OpenRoad road;
  road.sender = []() -> Result<std::unique_ptr<SendRoad>> {
    return std::unique_ptr<SendRoad>(std::make_unique<ToySender>(toy()));
  };
  road.receiver = []() -> Result<std::unique_ptr<ReceiveRoad>> {
    return std::unique_ptr<ReceiveRoad>(std::make_unique<ToyReceiver>(toy()));
  };
  return road;
}
Status publish_toy_end(const RoadOptions&, std::string_view text) {
  toy()->end = text;
  return {};
}
Result<std::optional<std::string>> fetch_toy_end(const RoadOptions&) { return toy()->end; }

constexpr RoadOpener kToyOpener{
    .open = open_toy, .publish_end = publish_toy_end, .fetch_end = fetch_toy_end};

// The author of a road adds a row to roads.cpp: here that of `toy`. The others stand for existing
// rows.
const std::array kRows = {
    Road{"toy", "a map in memory", {}, &kToyOpener},
    Road{"absent", "not built here", {"ABSENT", "", "no libabsent was found"}},
    Road{"loaded", "in a library", {"LOADED", "libdriftless_no_such_library.so", ""}},
};
const RoadTable& table() {
  static const RoadTable rows{"", kRows, {}, {"MPI", "", "no MPI was found"}, nullptr};
  return rows;
}

Config config_for(std::string road) {
  Config config;
  config.road = std::move(road);
  config.connect_deadline = 2s;
  config.receiver.fetch_deadline = 300ms;
  config.publisher.first_anchor = true;
  config.publisher.threads = config.receiver.threads = 1;
  EXPECT_TRUE(complete_config(config).ok());
  return config;
}

class Roads : public ::testing::Test {
 protected:
  void SetUp() override { toy() = std::make_shared<ToyMedium>(); }

  void start(const Weights& base) { start(base, table(), config_for("toy")); }
  void start(const Weights& base, const RoadTable& roads, const Config& config) {
    auto trainer = join_job(roads, config, JobRole::kTrainer, {});
    ASSERT_TRUE(trainer.ok()) << trainer.status().to_string();
    trainer_ = std::move(*trainer);
    MemorySource source(base);
    auto publisher = PublisherSession::open(config, *trainer_, source);
    ASSERT_TRUE(publisher.ok()) << publisher.status().to_string();
    publisher_ = std::move(*publisher);
    auto rollout = join_job(roads, config, JobRole::kRollout, {});
    ASSERT_TRUE(rollout.ok()) << rollout.status().to_string();
    rollout_ = std::move(*rollout);
    const auto joined = join_road(config, rollout_, "rollout", Deadline::after(1s));
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    target_ = std::move(*make_owned_target(posix_file_system(), std::nullopt, 1));
    auto opened = Receiver::open(joined->options, *joined->road, *target_, Deadline::after(1s));
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    receiver_ = std::move(*opened);
  }
  void publish(const Weights& weights) {
    MemorySource source(weights);
    const auto report = publisher_->publish(source);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }
  void take() {
    const auto staged = receiver_->stage(Deadline::after(1s));
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE(*staged);
    const auto report = receiver_->commit();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }

  std::unique_ptr<JobProcess> trainer_;
  std::unique_ptr<PublisherSession> publisher_;
  std::unique_ptr<MappedTarget> target_;
  std::shared_ptr<JobProcess> rollout_;
  std::unique_ptr<Receiver> receiver_;
};

TEST_F(Roads, ARowIsAllThatAJobNeedsToUseANewRoad) {
  Weights weights = random_weights(1);
  ASSERT_NO_FATAL_FAILURE(start(weights));
  ASSERT_NO_FATAL_FAILURE(take());  // the anchor of version 0
  for (std::uint64_t version = 1; version <= 3; ++version) {
    weights = changed_weights(weights, version, 0.02);
    ASSERT_NO_FATAL_FAILURE(publish(weights));
    ASSERT_NO_FATAL_FAILURE(take());
    EXPECT_EQ(receiver_->state().id.version, version);
    EXPECT_EQ(receiver_->state().digest, publisher_->newest().digest);
  }
  EXPECT_EQ(receiver_->counts().commits, 4U);
  EXPECT_FALSE(receiver_->listen_for_end()->has_value());
  ASSERT_TRUE(publisher_->declare_end().ok());
  const auto end = receiver_->listen_for_end();
  ASSERT_TRUE(end.ok() && end->has_value());
  EXPECT_EQ((*end)->version, 3U);
  EXPECT_EQ((*end)->digest, receiver_->state().digest);
  EXPECT_TRUE(receiver_->leave().ok());
  receiver_.reset();
  EXPECT_TRUE(rollout_->close(Deadline::after(1s)).ok());
}

// For a road with settings, in a library of its own, the author adds its kind and a row that names
// the library.
TEST_F(Roads, ARoadBringsItsKeysAndIsLoadedOnDemand) {
  constexpr std::array<const RoadKind*, 1> kKinds = {&testing::kToyKind};
  constexpr std::array kLoaded = {
      Road{"toy", "maps in memory", {"LIBTOY", "libdriftless_toy_roads.so", ""}}};
  const RoadTable roads{"", kLoaded, {}, {}, nullptr};
  const ConfigTable keys(kKinds);
  const auto parse = [&](std::string_view text) {
    return parse_config(text, "toy.yaml", {}, keys);
  };
  const auto refused = [&](std::string_view text, std::string_view words) {
    const std::string message(parse(text).status().message());
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refused("road: { kind: toy }\n", "road.toy.map is missing");
  refused("road: { kind: toy, map: a }\n", "'road.map': is now 'road.toy.map'");
  refused("road: { kind: toy, toy: { map: a, most_parts: 65 } }\n", "1 to 64");
  refused("road: { kind: toy, toy: { mpa: a } }\n", "did you mean 'road.toy.map'?");
  refused("road: { mpi_rma: { anchor_size: auto } }\n", "road.mpi_rma");

  auto config = parse(
      "road: { kind: toy, toy: { map: a } }\nanchors: { first: true }\nthreads: 1\n"
      "deadlines: { connect: 2s, fetch: 300ms }\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(keys.find("road.toy.map")->text(*config, 0), "a");
  EXPECT_EQ(keys.find("road.toy.most_parts")->default_value(), "8");
  Weights weights = random_weights(4);
  ASSERT_NO_FATAL_FAILURE(start(weights, roads, *config));
  ASSERT_NO_FATAL_FAILURE(take());
  weights = changed_weights(weights, 1, 0.02);
  ASSERT_NO_FATAL_FAILURE(publish(weights));
  ASSERT_NO_FATAL_FAILURE(take());
  EXPECT_EQ(receiver_->state().digest, publisher_->newest().digest);
  // The setting reaches the opener: on another map there is no run.
  config->of_road<testing::ToyOptions>().map = "b";
  auto lonely = join_job(roads, *config, JobRole::kRollout, {});
  ASSERT_TRUE(lonely.ok());
  const auto road = (*lonely)->receiver(Deadline::after(1s));
  ASSERT_TRUE(road.ok()) << road.status().to_string();
  EXPECT_FALSE((*road)->run_info(Deadline::after(10ms)).ok());
  EXPECT_TRUE(backends(roads)[0].built) << backends(roads)[0].why_not;
}

struct Nothing {
  static constexpr bool kHere = false, kMpi = false, kHdf5 = false, kNccl = false, kTcp = false,
                        kStore = false;
  static constexpr Availability kMpiAt{}, kHdf5At{}, kNcclAt{}, kTcpAt{}, kStoreAt{};
};

// The configuration finds the roads' settings in the list of roads.
TEST(RoadRows, EveryRowIsAKindOrAVariantOfOne) {
  std::vector<const RoadKind*> kinds;
  std::set<std::string_view> names;
  for (const Road& row : RoadRows<Nothing>::kRows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.opener, nullptr) << row.name << ": nothing is linked";
    const std::string_view road = row.name.substr(0, row.name.find('/'));
    if (row.kind != nullptr) {
      kinds.push_back(row.kind);
      EXPECT_EQ(row.kind->name, row.name);
    }
    if (road == row.name) continue;
    ASSERT_FALSE(kinds.empty()) << row.name;
    EXPECT_EQ(kinds.back()->name, road) << "a variant follows its road";
    EXPECT_NE(kinds.back()->variant, nullptr) << row.name;
  }
  EXPECT_TRUE(std::ranges::equal(kinds, road_kinds()));
}

TEST(ReportProof, IsReadAsItWasWritten) {
  const std::string digest(32, 'a');
  const ReportProof all =
      parse_proof(to_text(ReportProof{digest, std::string(32, 'b'), 3, true, 1.5, 0.25}));
  EXPECT_EQ(all.digest, digest);
  EXPECT_EQ(all.unproven, 3U);
  EXPECT_EQ(all.run, std::string(32, 'b'));
  EXPECT_TRUE(all.timed);
  EXPECT_EQ(all.stage_ms, 1.5);
  EXPECT_EQ(all.commit_ms, 0.25);
  EXPECT_FALSE(parse_proof(digest + " unproven=3").timed);
  EXPECT_EQ(parse_proof(digest).unproven, 0U);
  EXPECT_EQ(parse_proof(kAnchorWanted).digest, "") << "it holds nothing that it can go on from";
  EXPECT_EQ(parse_proof(digest + " unproven=-7").unproven, 0U);
}

// Between two versions the trainer receives its rollout's reports, although the caller only waits.
TEST_F(Roads, AReceiverThatWaitsGivesSignsOfLife) {
  ASSERT_NO_FATAL_FAILURE(start(random_weights(2)));
  ASSERT_NO_FATAL_FAILURE(take());  // the anchor of version 0
  toy()->receivers.clear();
  EXPECT_FALSE(*receiver_->stage(Deadline::after(1200ms)));
  ASSERT_EQ(publisher_->listen()->size(), 1U);
  EXPECT_EQ((*publisher_->listen())[0].id, "rollout");
  EXPECT_NE((*publisher_->listen())[0].proof.find("stage_ms="), std::string::npos);
}

// An end-of-run note that cannot be read yet is neither an end nor an error until deadlines.fetch
// has passed.
TEST_F(Roads, AnIncompleteEndOfTheRunIsReadAgain) {
  ASSERT_NO_FATAL_FAILURE(start(random_weights(3)));
  toy()->end = "{\"run\": \"";
  const auto early = receiver_->listen_for_end();
  ASSERT_TRUE(early.ok()) << early.status().to_string();
  EXPECT_FALSE(early->has_value());
  std::this_thread::sleep_for(350ms);
  EXPECT_EQ(receiver_->listen_for_end().status().code(), StatusCode::kCorrupt);
}

// Trainers that were not joined by MPI (Python, under torchrun) are the ranks of the group on any
// road that accepts a group.
TEST_F(Roads, AGroupOfTheCallerDecidesWhereTheRoadIsOpened) {
  LoopbackHub hub({}, 3);
  const auto group = hub.group(1);
  const auto open = [&](bool takes_groups) {
    Road row = kRows[0];
    row.takes_groups = takes_groups;
    const RoadTable one{"", {&row, 1}, {}, {}, nullptr};
    const auto trainer = join_job(one, config_for("toy"), JobRole::kTrainer, {});
    return (*trainer)->sender(0, Deadline::after(1s), group.get()).status();
  };
  EXPECT_EQ(open(false).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(open(true).ok());
  EXPECT_EQ(opened_at->rank, 1U);
  EXPECT_EQ(opened_at->trainers, 3U);
  EXPECT_EQ(opened_at->start, 0U);
}

// If the ranks of a road connect to each other, the road gets a number of this start of the
// trainers: the same on all ranks, and a new one for each start.
TEST_F(Roads, RanksOfOneStartShareANumber) {
  LoopbackHub hub({}, 2);
  Road row = kRows[0];
  row.takes_groups = row.knows_starts = true;
  const RoadTable one{"", {&row, 1}, {}, {}, nullptr};
  const auto start_of_both = [&] {
    std::array<std::uint64_t, 2> starts{};
    for (const unsigned rank : {0U, 1U}) {  // rank 0's broadcast does not wait
      const auto group = hub.group(rank);
      const auto trainer = join_job(one, config_for("toy"), JobRole::kTrainer, {});
      EXPECT_TRUE((*trainer)->sender(0, Deadline::after(1s), group.get()).ok());
      starts[rank] = opened_at->start;
    }
    EXPECT_EQ(starts[0], starts[1]);
    return starts[0];
  };
  const std::uint64_t first = start_of_both();
  EXPECT_NE(first, 0U);
}

TEST_F(Roads, WhatIsNotThereIsNamedWithTheReason) {
  const auto refusal = [](const std::string& road, bool launched = false) {
    return join_job(table(), config_for(road), JobRole::kRollout, Launch{.mpi = launched}).status();
  };
  EXPECT_EQ(refusal("tyo").code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refusal("tyo").message().find("road.kind: 'tyo' is no road; the roads are: toy"),
            std::string::npos);
  EXPECT_EQ(refusal("absent").code(), StatusCode::kUnsupported);
  EXPECT_NE(refusal("absent").message().find("no libabsent was found"), std::string::npos);
  EXPECT_NE(refusal("loaded").message().find("LOADED is needed and cannot be loaded"),
            std::string::npos);
  EXPECT_NE(refusal("toy", true).message().find("MPI is not in this build: no MPI was found"),
            std::string::npos);
  // One that joins trainers by MPI, in a process that MPI did not start.
  Road joining = kRows[0];
  joining.name = "shared_fs/toy";
  joining.key = "road.layout";
  joining.needs_mpi = [](JobRole role) { return role == JobRole::kTrainer; };
  const std::array rows = {joining, Road{"shared_fs", "", {}, &kToyOpener},
                           Road{"host_shm", "", {}, &kToyOpener}};
  const RoadTable some{"", rows, {}, {}, nullptr};
  Config config = config_for("toy");
  config.road = "shared_fs/toy";
  const Launch actor{.launcher = Launcher::kRay};
  EXPECT_EQ(
      join_job(some, config, JobRole::kTrainer, actor).status().to_string(),
      "invalid_argument: road.layout: a trainer on shared_fs/toy joins the others by MPI, and "
      "ray, without MPI, started this process: start it by mpirun or srun --mpi=pmix, or use "
      "road.kind shared_fs, not shared_fs/toy");
  EXPECT_TRUE(join_job(some, config, JobRole::kRollout, actor).ok());
  const std::vector<Backend> listed = backends(table());
  ASSERT_EQ(listed.size(), kRows.size());
  EXPECT_TRUE(listed[0].built);
  EXPECT_FALSE(listed[1].built);
  EXPECT_EQ(listed[1].why_not, "no libabsent was found");
}

// If ranks that were not joined by MPI connect to each other, those of an earlier start of the job
// are recognized.
TEST(RoadRows, RanksThatConnectKnowTheirStart) {
  std::set<std::string_view> know;
  for (const Road& row : RoadRows<Nothing>::kRows) {
    if (row.knows_starts) know.insert(row.name);
  }
  EXPECT_EQ(know, (std::set<std::string_view>{"nccl", "nccl/hub", "peer"}));
}

}  // namespace
}  // namespace driftless
