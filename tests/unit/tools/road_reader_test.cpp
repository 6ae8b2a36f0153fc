// SPDX-License-Identifier: Apache-2.0
// `driftless status` on a directory in which the run continues and ends during the look.
#include "tools/status/road_reader.h"

#include <gtest/gtest.h>

#include "formats/manifest.h"
#include "plugin/job/job_process.h"
#include "plugin/receive/run_end.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

constexpr Hash128 kRun{1, 2};

// After each list a trainer publishes the next version and ends, until `steps` have done so. The
// last end names a version that is `ahead` of what was published.
struct Trainers {
  std::string dir;
  std::uint64_t steps = 0;
  std::uint64_t ahead = 0;
  std::uint64_t version = 1;
  std::uint64_t lists = 0;

  void work() {
    if (version <= steps) ++version;
    const std::uint64_t end = version + (version > steps ? ahead : 0);
    const Status written = replace_text(posix_file_system(), join_path(dir, "closed.json"),
                                        end_to_json({kRun, end, Digest{{3, end}}}));
    EXPECT_TRUE(written.ok()) << written.to_string();
  }
};

class MovingRoad final : public ReceiveRoad {
 public:
  explicit MovingRoad(Trainers& trainers) : trainers_(trainers) {}

  Result<std::vector<PublicationId>> list(const Deadline& /*deadline*/) override {
    std::vector<PublicationId> ids;
    for (std::uint64_t version = 1; version <= trainers_.version; ++version) {
      ids.push_back({version});
    }
    ++trainers_.lists;
    trainers_.work();
    return ids;
  }
  Result<std::string> fetch_manifest(const PublicationId& id,
                                     const Deadline& /*deadline*/) override {
    Manifest manifest;
    manifest.id = {kRun, id.version};
    manifest.base_version = id.version - 1;
    manifest.directory_layout = DirectoryLayout::kFrames;
    manifest.encoding = Encoding::kDeltas;
    manifest.digest = Digest{{3, id.version}};
    manifest.total_units = 10;
    manifest.full_bytes = 20;
    manifest.created = "2026-01-01T00:00:00Z";
    return manifest_to_json(manifest);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& /*part*/,
                                               std::span<const ByteRange> /*ranges*/,
                                               const Deadline& /*deadline*/) override {
    return not_there("moving", id);
  }
  Result<std::string> run_info(const Deadline& /*deadline*/) override {
    return error(StatusCode::kDeadlineExceeded, "no announcement");
  }
  Status wait_beyond(std::uint64_t /*version*/, const Deadline& /*deadline*/) override {
    return unused();
  }
  bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& /*report*/, const Deadline& /*deadline*/) override {
    return unused();
  }
  Status leave(const Deadline& /*deadline*/) override { return unused(); }

 private:
  static Status unused() { return error(StatusCode::kUnsupported, "status only reads"); }
  Trainers& trainers_;
};

Result<Sighting> look_at(Trainers& trainers, std::chrono::milliseconds wait = 1min) {
  DRIFTLESS_ASSIGN_OR_RETURN(Config config,
                             parse_config("road: { kind: shared_fs }", "test",
                                          {{concat("road.shared_fs.dir=", trainers.dir)}}));
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, find_road(road_table(), config));
  return make_reader_of_road(config, trainers.dir, *road->opener,
                             std::make_unique<MovingRoad>(trainers), 10)
      ->look(Deadline::after(wait));
}

TEST(RoadReader, ARunThatEndsAnewAtEveryLookIsNotDamaged) {
  const testing::TempDir dir(testing::TempDir::Where::kMemory);
  Trainers trainers{.dir = dir.path(), .steps = 4};
  const Result<Sighting> sighting = look_at(trainers);
  ASSERT_TRUE(sighting.ok()) << sighting.status().to_string();
  EXPECT_EQ(sighting->damaged, std::vector<std::string>());
  EXPECT_EQ(sighting->status.trainer, TrainerState::kEnded);
  EXPECT_EQ(sighting->status.version, 5U);
  EXPECT_EQ(trainers.lists, 5U);
}

TEST(RoadReader, AnEndAheadOfAListThatStandsStillIsDamage) {
  const testing::TempDir dir(testing::TempDir::Where::kMemory);
  Trainers trainers{.dir = dir.path(), .steps = 2, .ahead = 2};
  const Result<Sighting> sighting = look_at(trainers);
  ASSERT_TRUE(sighting.ok()) << sighting.status().to_string();
  ASSERT_EQ(sighting->damaged.size(), 1U);
  EXPECT_EQ(sighting->damaged[0],
            "closed.json names version 5 as the last, and the newest one here is 3");
  EXPECT_EQ(trainers.lists, 4U) << "the last list brings nothing new";
}

TEST(RoadReader, LooksNoLongerThanTheDeadline) {
  const testing::TempDir dir(testing::TempDir::Where::kMemory);
  Trainers trainers{.dir = dir.path(), .steps = ~std::uint64_t{0}};
  const Result<Sighting> sighting = look_at(trainers, 0ms);
  EXPECT_EQ(sighting.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(trainers.lists, 1U);
}

}  // namespace
}  // namespace driftless
