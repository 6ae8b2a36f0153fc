// SPDX-License-Identifier: Apache-2.0
// What the shared_fs road does beyond the contract suite (tests/contract/road_contract_test.cpp).
#include "collectives/shared_fs/shared_fs_road.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "collectives/shared_fs/part_container.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"
#include "support/whole_part.h"

namespace driftless::testing {
namespace {

namespace stdfs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

class SharedFsRoadTest : public ::testing::Test {
 protected:
  SharedFsRoadTest() {
    options_.dir = dir_.file("road");
    options_.poll_first = std::chrono::milliseconds(1);
    options_.poll_longest = std::chrono::milliseconds(5);
    options_.lock_wait = std::chrono::milliseconds(50);
  }

  std::unique_ptr<SendRoad> sender(unsigned rank = 0, unsigned ranks = 1) {
    auto made = make_shared_fs_sender(posix_file_system(), options_, rank, ranks);
    EXPECT_TRUE(is_ok(made));
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::unique_ptr<ReceiveRoad> receiver() {
    auto made = make_shared_fs_receiver(posix_file_system(), options_);
    EXPECT_TRUE(is_ok(made));
    return made.ok() ? std::move(*made) : nullptr;
  }
  static Result<std::vector<PartReceipt>> write(SendRoad& road, const PublicationId& id) {
    DRIFTLESS_RETURN_IF_ERROR(road.begin(id, soon()));
    DRIFTLESS_RETURN_IF_ERROR(write_part(road, {"part", random_part(1000, id.version)}));
    return road.flush(soon());
  }
  static Result<std::vector<PartReceipt>> publish(SendRoad& road, const PublicationId& id) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> receipts, write(road, id));
    DRIFTLESS_RETURN_IF_ERROR(road.seal(manifest_of(id), soon()));
    return receipts;
  }
  [[nodiscard]] std::string road(const std::string& name) const {
    return options_.dir + "/" + name;
  }
  [[nodiscard]] std::vector<std::string> names(const std::string& inside = "") const {
    std::vector<std::string> found;
    for (const auto& entry : stdfs::directory_iterator(road(inside))) {
      found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  }

  TempDir dir_{TempDir::Where::kMemory};
  SharedFsOptions options_;
};

using Names = std::vector<std::string>;

TEST_F(SharedFsRoadTest, TheDirectoryIsAsDocumented) {
  const auto leader = sender();
  ASSERT_OK(leader->announce("{\"run\":1}", soon()));
  ASSERT_OK(publish(*leader, step(7)));
  ASSERT_OK(publish(*leader, anchor(7)));
  ASSERT_OK(receiver()->report({"host-0", 7, "proof"}, soon()));
  EXPECT_EQ(names(), (Names{".driftless-publisher.lock", ".receivers", ".used_v000007",
                            "anchor_v000007", "run.json", "weight_v000007"}));
  EXPECT_EQ(names("weight_v000007"), (Names{"DONE", "manifest.json", "part"}));
  EXPECT_EQ(names(".receivers"), Names{"host-0.json"});
  EXPECT_EQ(content(road("run.json")), "{\"run\":1}");
  const std::string manifest = content(road("weight_v000007/manifest.json"));
  EXPECT_EQ(manifest, manifest_of(step(7)));
  EXPECT_EQ(content(road("weight_v000007/DONE")), to_hex(xxh3_128(manifest)) + "\n");
}

TEST_F(SharedFsRoadTest, ASecondPublisherIsRefusedAndNamesTheDirectory) {
  auto first = sender();
  const auto second = make_shared_fs_sender(posix_file_system(), options_, 0, 1);
  ASSERT_EQ(second.status().code(), StatusCode::kBusy);
  EXPECT_NE(second.status().message().find(options_.dir), std::string::npos);
  ASSERT_OK(publish(*first, step(1))) << "the first is not disturbed";
  first.reset();
  ASSERT_OK(publish(*sender(), step(2)));
}

TEST_F(SharedFsRoadTest, ARestartedPublisherGoesOnAndRemovesWhatWasLeft) {
  {
    const auto leader = sender();
    ASSERT_OK(leader->announce("run", soon()));
    ASSERT_OK(publish(*leader, step(1)));
  }
  for (const char* stale : {".weight_v000002.tmp", ".weight_v000002.0123.tmp",
                            ".anchor_v000001.x.tmp", ".dropped_weight_v000000.x.tmp"}) {
    stdfs::create_directories(road(stale) + "/inner");
    put(road(stale) + "/rank0_part0", "old");
  }
  stdfs::create_directory(road(".someone_elses.tmp"));
  const auto leader = sender();
  EXPECT_EQ(names(), (Names{".driftless-publisher.lock", ".someone_elses.tmp", ".used_v000001",
                            "run.json", "weight_v000001"}));
  ASSERT_OK(leader->announce("run", soon()));
  EXPECT_EQ(leader->begin(step(1), soon()).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(*leader->published(step(1), soon()));
  ASSERT_OK(publish(*leader, step(2)));
}

TEST_F(SharedFsRoadTest, TheHighestNumberIsRemembered) {
  {
    const auto leader = sender();
    ASSERT_OK(leader->announce("run", soon()));
    EXPECT_EQ(*leader->highest_number(), 0U);
    ASSERT_OK(publish(*leader, step(1)));
    ASSERT_OK(publish(*leader, step(4)));
    ASSERT_OK(publish(*leader, anchor(4)));
    EXPECT_EQ(*leader->highest_number(), 4U);
  }
  stdfs::remove_all(road("weight_v000004"));
  EXPECT_EQ(*sender()->highest_number(), 4U);
  put(road(".used_v000002"), "a publisher that was fenced wrote it late");
  EXPECT_EQ(*sender()->highest_number(), 4U);
}

TEST_F(SharedFsRoadTest, AnUnfinishedPublicationGoesWithItsSender) {
  {
    const auto leader = sender();
    ASSERT_OK(write(*leader, step(1)));
    EXPECT_EQ(names().size(), 2U);
  }
  EXPECT_EQ(names(), Names{".driftless-publisher.lock"});
}

TEST_F(SharedFsRoadTest, ARankOfADeadPublisherCannotDisturbTheNext) {
  const auto ghost = sender(1, 2);
  auto ghost_file = Result<std::unique_ptr<File>>(nullptr);
  {
    const auto leader = sender(0, 2);
    ASSERT_OK(leader->begin(step(1), soon()));
    ASSERT_OK(ghost->begin(step(1), soon()));
    ghost_file = ghost->create_part("rank1_part0");
    ASSERT_OK(ghost_file);
    ASSERT_OK((*ghost_file)->pwrite(0, random_part(10, 1)));
  }
  const auto leader = sender(0, 2);
  const auto other = sender(1, 2);
  ASSERT_OK(leader->begin(step(1), soon()));
  ASSERT_OK(other->begin(step(1), soon()));
  ASSERT_OK(write_part(*other, {"rank1_part0", random_part(500, 2)}));
  const Status late = (*ghost_file)->pwrite(10, random_part(10, 3));
  EXPECT_FALSE(ghost->create_part("rank1_part1").ok());
  EXPECT_FALSE(ghost->flush(soon()).ok());
  ASSERT_OK(ghost->abort());
  ASSERT_OK(leader->flush(soon()));
  const auto receipts = other->flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(leader->seal(manifest_of(step(1)), soon()));
  EXPECT_EQ(names("weight_v000001"), (Names{"DONE", "manifest.json", "rank1_part0"}));
  expect_fetched(*receiver(), step(1), {{}, {{"rank1_part0", random_part(500, 2)}}}, *receipts);
}

TEST_F(SharedFsRoadTest, ARankWaitsForTheLeadersDirectoryUntilTheDeadline) {
  const auto other = sender(1, 2);
  const Status status = other->begin(step(1), in_ms(50));
  ASSERT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.to_string();
}

TEST_F(SharedFsRoadTest, OnlyTheLeaderAnnouncesSealsAndPrunes) {
  const auto leader = sender(0, 2);
  const auto other = sender(1, 2);
  ASSERT_OK(leader->begin(step(1), soon()));
  ASSERT_OK(other->begin(step(1), soon()));
  EXPECT_EQ(other->announce("run", soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->seal("manifest", soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->prune(1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->receivers().status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SharedFsRoadTest, PartsCannotHaveReservedNames) {
  const auto leader = sender();
  ASSERT_OK(leader->begin(step(1), soon()));
  for (const char* name : {"manifest.json", "DONE", ".hidden"}) {
    EXPECT_FALSE(leader->create_part(name).ok()) << name;
  }
}

TEST_F(SharedFsRoadTest, WrongOptionsAreRefused) {
  FileSystem& fs = posix_file_system();
  EXPECT_FALSE(make_shared_fs_sender(fs, options_, 2, 2).ok());
  SharedFsOptions wrong = options_;
  wrong.dir.clear();
  EXPECT_EQ(make_shared_fs_receiver(fs, wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = options_;
  wrong.poll_first = std::chrono::milliseconds(0);
  EXPECT_EQ(make_shared_fs_receiver(fs, wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = options_;
  wrong.poll_longest = std::chrono::milliseconds(0);
  EXPECT_EQ(make_shared_fs_sender(fs, wrong, 0, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SharedFsRoadTest, VersionsAscend) {
  const auto leader = sender();
  ASSERT_OK(publish(*leader, step(5)));
  EXPECT_EQ(leader->begin(step(4), soon()).code(), StatusCode::kInvalidArgument);
  ASSERT_OK(publish(*leader, anchor(4)));
}

// The files of a version become visible late and in any order.
TEST_F(SharedFsRoadTest, AVersionThatAppearsPieceByPieceIsIncompleteUntilItIsThere) {
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  const PartReceipt& part = receipts->front();
  const std::string saved = dir_.file("saved");
  stdfs::rename(road("weight_v000001"), saved);
  const auto late = receiver();
  const auto manifest_code = [&] { return late->fetch_manifest(step(1), soon()).status().code(); };
  const auto part_code = [&] { return late->fetch_part(step(1), part, soon()).status().code(); };
  EXPECT_EQ(manifest_code(), StatusCode::kNotFound);
  EXPECT_EQ(part_code(), StatusCode::kNotFound);
  stdfs::create_directory(road("weight_v000001"));
  EXPECT_TRUE(late->list(soon())->empty()) << "no DONE";
  EXPECT_EQ(manifest_code(), StatusCode::kIncomplete);
  EXPECT_EQ(part_code(), StatusCode::kIncomplete);
  stdfs::copy_file(saved + "/DONE", road("weight_v000001/DONE"));
  EXPECT_EQ(late->list(soon())->size(), 1U);
  EXPECT_EQ(manifest_code(), StatusCode::kIncomplete) << "no manifest yet";
  put(road("weight_v000001/manifest.json"), manifest_of(step(1)).substr(0, 10));
  EXPECT_EQ(manifest_code(), StatusCode::kIncomplete) << "half a manifest";
  put(road("weight_v000001/manifest.json"), manifest_of(step(1)));
  EXPECT_EQ(manifest_code(), StatusCode::kOk);
  const std::string bytes = content(saved + "/part");
  put(road("weight_v000001/part"), bytes.substr(0, 999));
  EXPECT_EQ(part_code(), StatusCode::kIncomplete) << "short";
  put(road("weight_v000001/part"), bytes);
  EXPECT_EQ(part_code(), StatusCode::kOk);
}

TEST_F(SharedFsRoadTest, ForeignAndDamagedFilesHaveDifferentCodes) {
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  const std::string part = road("weight_v000001/part");
  const auto reader = receiver();
  const auto part_code = [&] {
    return reader->fetch_part(step(1), receipts->front(), soon()).status().code();
  };
  put(part, content(part) + "x");
  EXPECT_EQ(part_code(), StatusCode::kCorrupt) << "longer";
  stdfs::rename(part, dir_.file("elsewhere"));
  stdfs::create_symlink(dir_.file("elsewhere"), part);
  EXPECT_EQ(part_code(), StatusCode::kCorrupt) << "a link";
  put(road("weight_v000001/DONE"), std::string(1000, '0'));
  EXPECT_EQ(reader->fetch_manifest(step(1), soon()).status().code(), StatusCode::kCorrupt);
  for (const char* name : {"weight_v7", "weight_v0000007", "weight_vx", "anchor_v", "other"}) {
    stdfs::create_directory(road(name));
    put(road(name) + "/DONE", "");
  }
  put(road("weight_v000009"), "a file");
  EXPECT_EQ(*reader->list(soon()), std::vector{step(1)});
}

TEST_F(SharedFsRoadTest, APublicationThatIsALinkIsRefused) {
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  const auto reader = receiver();
  stdfs::rename(road("weight_v000001"), road("kept"));
  stdfs::create_directory_symlink("kept", road("weight_v000001"));
  EXPECT_EQ(reader->fetch_manifest(step(1), soon()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(reader->fetch_part(step(1), receipts->front(), soon()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SharedFsRoadTest, AReceiverMayBeThereBeforeTheDirectory) {
  const auto early = receiver();
  EXPECT_TRUE(early->list(soon())->empty());
  EXPECT_EQ(early->wait_beyond(0, in_ms(20)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(early->report({"early", 0, ""}, soon()).code(), StatusCode::kNotFound);
  EXPECT_FALSE(stdfs::exists(options_.dir)) << "it may be mistyped, or not mounted";
  const auto leader = sender();
  EXPECT_EQ(leader->notes().size(), 1U) << "made";
  ASSERT_OK(early->report({"early", 0, ""}, soon()));
  EXPECT_EQ(leader->receivers()->size(), 1U);
}

TEST_F(SharedFsRoadTest, OnlyTheLastDirectoryIsMade) {
  options_.dir = dir_.file("not/mounted");
  const auto refused = make_shared_fs_sender(posix_file_system(), options_, 0, 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(stdfs::exists(dir_.file("not")));
  options_.dir = dir_.file("road") + "//";
  EXPECT_EQ(sender()->notes().size(), 1U);
  EXPECT_TRUE(sender()->notes().empty()) << "it was there";
}

TEST_F(SharedFsRoadTest, ANewRunForgetsTheReceiversOfTheLast) {
  const auto leader = sender();
  ASSERT_OK(receiver()->report({"old", 3, "proof"}, soon()));
  ASSERT_OK(leader->announce("run", soon()));
  EXPECT_TRUE(leader->receivers()->empty());
  ASSERT_OK(receiver()->report({"new", 0, ""}, soon()));
  ASSERT_OK(leader->announce("run", soon())) << "the same";
  EXPECT_EQ(leader->receivers()->size(), 1U);
}

TEST_F(SharedFsRoadTest, ADamagedReceiverFilePreventsPruning) {
  const auto leader = sender();
  for (std::uint64_t v = 1; v <= 3; ++v) ASSERT_OK(publish(*leader, step(v)));
  stdfs::create_directory(road(".receivers"));
  put(road(".receivers/host.json"), "{\"id\":\"ho");
  EXPECT_TRUE(leader->prune(2)->empty());
  ASSERT_EQ(leader->receivers()->size(), 1U);
  ASSERT_OK(receiver()->report({"host", 1, "proof"}, soon()));
  EXPECT_EQ(*leader->prune(2), std::vector{step(1)});
}

TEST_F(SharedFsRoadTest, ARestartedReceiverIsASignOfLifeEvenWithTheSameReport) {
  const auto leader = sender();
  ASSERT_OK(receiver()->report({"host", 1, "proof"}, soon()));
  const std::string first = content(road(".receivers/host.json"));
  ASSERT_OK(receiver()->report({"host", 1, "proof"}, soon()));
  EXPECT_NE(content(road(".receivers/host.json")), first);
}

TEST_F(SharedFsRoadTest, AfterPublishRunsWithTheDirectoryOfWhatAppeared) {
  options_.after_publish =
      "test -f \"$DRIFTLESS_VERSION_DIR/DONE\" && "
      "echo \"$DRIFTLESS_DIR $DRIFTLESS_VERSION_DIR\" >> \"$DRIFTLESS_DIR/hook.log\"";
  const auto leader = sender();
  ASSERT_OK(publish(*leader, step(1)));
  ASSERT_OK(publish(*leader, anchor(1)));
  EXPECT_EQ(content(road("hook.log")), options_.dir + " " + road("weight_v000001") + "\n" +
                                           options_.dir + " " + road("anchor_v000001") + "\n");
}

TEST_F(SharedFsRoadTest, AfterPublishThatFailsIsReportedAndTheVersionStays) {
  options_.after_publish = "echo 'cannot flush' >&2; exit 4";
  const auto leader = sender();
  const auto result = publish(*leader, step(1));
  ASSERT_EQ(result.status().code(), StatusCode::kIo);
  for (const char* part : {"is published", "weight_v000001", "status 4", "cannot flush"}) {
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << result.status().to_string();
  }
  EXPECT_TRUE(*leader->published(step(1), soon()));
  ASSERT_OK(leader->abort()) << "nothing is unfinished";
  EXPECT_EQ(*receiver()->list(soon()), std::vector{step(1)});
}

TEST_F(SharedFsRoadTest, AfterPublishThatHangsEndsInTime) {
  options_.after_publish = "sleep 30";
  options_.hook_timeout = std::chrono::milliseconds(80);
  const auto leader = sender();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(publish(*leader, step(1)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(*leader->published(step(1), soon()));
}

// The hook makes the version visible: without it the receiver sees nothing.
TEST_F(SharedFsRoadTest, BeforeReadRunsBeforeEachLookButNotMoreOften) {
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  stdfs::rename(road("weight_v000001"), road("not_visible_yet"));
  options_.before_read =
      "echo x >> \"$DRIFTLESS_DIR/hook.log\"; cd \"$DRIFTLESS_DIR\" && "
      "{ test ! -e not_visible_yet || mv not_visible_yet weight_v000001; }";
  options_.poll_first = options_.poll_longest = std::chrono::milliseconds(200);
  const auto reader = receiver();
  ASSERT_OK(reader->wait_beyond(0, soon()));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(reader->list(soon())->size(), 1U);
  EXPECT_LE(content(road("hook.log")).size(), 4U) << "once, twice on a slow machine";
}

// Otherwise a receiver that waits in short turns would never see anything.
TEST_F(SharedFsRoadTest, BeforeReadMayTakeLongerThanTheWait) {
  ASSERT_OK(publish(*sender(), step(1)));
  options_.before_read = "sleep 0.2";
  ASSERT_OK(receiver()->wait_beyond(0, Deadline::after(std::chrono::milliseconds(20))));
  options_.hook_timeout = std::chrono::milliseconds(80);
  EXPECT_EQ(receiver()->wait_beyond(0, soon()).code(), StatusCode::kIo) << "it is no 'nothing new'";
}

TEST_F(SharedFsRoadTest, BeforeReadThatFailsIsAnError) {
  ASSERT_OK(publish(*sender(), step(1)));
  options_.before_read = "echo 'not mounted' >&2; false";
  const auto reader = receiver();
  const auto listed = reader->list(soon());
  ASSERT_EQ(listed.status().code(), StatusCode::kIo);
  EXPECT_NE(listed.status().message().find("not mounted"), std::string::npos);
  EXPECT_EQ(reader->wait_beyond(0, soon()).code(), StatusCode::kIo);
  EXPECT_EQ(reader->run_info(soon()).status().code(), StatusCode::kIo);
}

TEST_F(SharedFsRoadTest, FilesThatAreNotOursToWriteCanBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everything";
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  stdfs::permissions(road("weight_v000001/part"), stdfs::perms::owner_read);
  stdfs::permissions(road("weight_v000001/manifest.json"), stdfs::perms::owner_read);
  expect_fetched(*receiver(), step(1), {{{"part", random_part(1000, 1)}}}, *receipts);
}

TEST_F(SharedFsRoadTest, LargePartsAreMapped) {
  const auto receipts = publish(*sender(), step(1));
  ASSERT_OK(receipts);
  const auto reader = make_part_files_reader(posix_file_system(), 999);
  const auto part = read_whole_part(reader, road("weight_v000001"), receipts->front(), soon());
  ASSERT_OK(part);
  EXPECT_EQ(part->path(), "part");
  EXPECT_TRUE(std::ranges::equal(part->bytes(), random_part(1000, 1)));
}

}  // namespace
}  // namespace driftless::testing
