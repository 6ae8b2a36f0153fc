// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/receiver.h"

#include "support/receiver_fixture.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

TEST_F(ReceiverTest, FollowsStepByStep) {
  announce();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(receiver_->run(), run_.run);
  EXPECT_EQ(reported(), 0U);
  EXPECT_FALSE(*receiver_->stage(Deadline::after(10ms))) << "nothing is there yet";
  for (std::uint64_t version = 1; version <= 3; ++version) {
    publish(version, version);
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(done->from_version, version - 1);
    EXPECT_EQ(done->version, version);
    EXPECT_EQ(done->versions, 1U);
    EXPECT_EQ(done->digest, digest_of(run_.weights[version]));
    EXPECT_TRUE(same(held_, run_.weights[version]));
    EXPECT_EQ(done->full_bytes, run_.layout.total_bytes());
    EXPECT_GT(done->wire_bytes, 0U);
    EXPECT_FALSE(done->anchor);
    EXPECT_EQ(reported(), version);
  }
  EXPECT_EQ((*sender_->receivers())[0].proof,
            concat(to_hex(digest_of(run_.weights[3])), kProofRun, to_hex(receiver_->run())));
  ASSERT_TRUE(receiver_->leave().ok());
  EXPECT_TRUE(sender_->receivers()->empty());
}

TEST_F(ReceiverTest, FoldsWhatItMissed) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 5);
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->versions, 5U);
  EXPECT_EQ(done->version, 5U);
  EXPECT_TRUE(same(held_, run_.weights[5]));
}

TEST_F(ReceiverTest, FoldsNoMoreThanItMay) {
  announce();
  publish(1, 4);
  std::uint64_t bytes = 0;
  for (const auto& file : run_.step(1).manifest.files) bytes += file.size_bytes;
  options_.fold_bytes = bytes + 1;
  ASSERT_TRUE(open().ok());
  for (std::uint64_t version = 1; version <= 4; ++version) {
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(done->version, version);
  }
  EXPECT_TRUE(same(held_, run_.weights[4]));
}

// The changes take few bytes on the road, and as many as in other encodings once they are decoded.
TEST_F(ReceiverTest, FoldsNoMoreOfCompactThanItMay) {
  announce();
  std::uint64_t bytes = 0;
  for (std::uint64_t version = 1; version <= 4; ++version) {
    const Publication step = run_.step(version, DirectoryLayout::kFrames, Encoding::kCompact);
    for (const auto& file : step.manifest.files) bytes += file.size_bytes;
    send(*sender_, step);
  }
  options_.fold_bytes = bytes;
  ASSERT_TRUE(open().ok());
  std::uint64_t commits = 0;
  for (; receiver_->state().id.version < 4; ++commits) ASSERT_TRUE(update().ok());
  EXPECT_GT(commits, 1U);
  EXPECT_TRUE(same(held_, run_.weights[4]));
}

TEST_F(ReceiverTest, TakesAFullStepAlone) {
  announce();
  publish(1, 2);
  send(*sender_, run_.step(3, DirectoryLayout::kFrames, Encoding::kFull));
  publish(4, 5);
  ASSERT_TRUE(open().ok());
  for (const std::uint64_t version : {2U, 3U, 5U}) {
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(done->version, version);
    EXPECT_TRUE(same(held_, run_.weights[version]));
  }
}

TEST_F(ReceiverTest, JoinsLateFromAnAnchorAndGoesOn) {
  announce();
  publish(1, 3);
  send(*sender_, run_.anchor(3));
  publish(4, 5);
  ASSERT_TRUE(open(std::nullopt).ok());
  EXPECT_EQ((*sender_->receivers())[0].proof, "") << "it holds nothing";
  auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(done->anchor);
  EXPECT_EQ(done->version, 3U);
  EXPECT_TRUE(same(held_, run_.weights[3]));
  done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->version, 5U);
  EXPECT_EQ(done->versions, 2U);
  EXPECT_TRUE(same(held_, run_.weights[5]));
}

TEST_F(ReceiverTest, JoinsFromAnAnchorOfTheBase) {
  announce();
  send(*sender_, run_.anchor(0));
  auto target = make_owned_target(posix_file_system(), std::nullopt, 1);
  ASSERT_TRUE(open_on(**target).ok());  // and takes the run's layout
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->version, 0U);
  EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[0]));
  publish(1, 1);
  ASSERT_TRUE(update().ok());
  EXPECT_EQ((*target)->state().digest, digest_of(run_.weights[1]));
  receiver_.reset();
}

TEST_F(ReceiverTest, TakesAnAnchorWhereItsStepsAreGone) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 6);
  send(*sender_, run_.anchor(6));
  publish(7, 12);  // the ring holds 8: 5 to 12
  auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(done->anchor);
  EXPECT_EQ(done->version, 6U);
  done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->version, 12U);
  EXPECT_TRUE(same(held_, run_.weights[12]));
}

TEST_F(ReceiverTest, TakesANewerFullStepInPlaceOfAnAnchor) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 6);
  send(*sender_, run_.anchor(6));
  publish(7, 10);
  send(*sender_, run_.step(11, DirectoryLayout::kFrames, Encoding::kFull));
  publish(12, 12);
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->version, 11U);
  EXPECT_FALSE(done->anchor);
}

TEST_F(ReceiverTest, MissingStepsWithoutAnAnchorAreReportedWithTheNextAction) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 12);
  const auto done = update();
  EXPECT_EQ(done.status().code(), StatusCode::kWrongBase) << done.status().to_string();
  EXPECT_NE(done.status().message().find("after version 0"), std::string_view::npos)
      << done.status().to_string();
  EXPECT_TRUE(same(held_, run_.weights[0]));
  EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  send(*sender_, run_.anchor(12));
  ASSERT_TRUE(update().ok()) << "and goes on where one comes";
  EXPECT_TRUE(same(held_, run_.weights[12]));
  EXPECT_EQ((*sender_->receivers())[0].proof,
            concat(to_hex(digest_of(run_.weights[12])), kProofRun, to_hex(receiver_->run())));
}

// A version that is listed but stays gone counts as not listed.
TEST_F(ReceiverTest, AsksForAnAnchorWhereAPartIsGone) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 1);
  road_.part_failures.assign(1000, error(StatusCode::kNotFound, "it is gone"));
  const auto done = update();
  EXPECT_EQ(done.status().code(), StatusCode::kWrongBase) << done.status().to_string();
  EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  road_.part_failures.assign(1, error(StatusCode::kNotFound, "it is gone"));
  publish(2, 2);
  send(*sender_, run_.anchor(2));
  ASSERT_TRUE(update().ok());
  EXPECT_EQ((*sender_->receivers())[0].proof,
            concat(to_hex(digest_of(run_.weights[2])), kProofRun, to_hex(receiver_->run())));
}

TEST_F(ReceiverTest, LooksAgainWhereAStepGoesWhileItIsFetched) {
  announce();
  publish(1, 1);
  options_.fetch_deadline = 30s;  // ten versions are made within the fetch
  ASSERT_TRUE(open().ok());
  road_.once_part = [this] {
    publish(2, 2);
    send(*sender_, run_.anchor(2));
    publish(3, 11);  // 1 and 2 have gone
  };
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done->version, 2U);
  EXPECT_TRUE(done->anchor);
}

TEST_F(ReceiverTest, FetchesAgainWhatIsIncompleteOrDamaged) {
  announce();
  publish(1, 2);
  ASSERT_TRUE(open().ok());
  road_.manifest_failures = {error(StatusCode::kIncomplete, "not yet"),
                             error(StatusCode::kCorrupt, "torn")};
  road_.part_failures = {error(StatusCode::kIncomplete, "late"),
                         error(StatusCode::kNotFound, "gone")};
  road_.damaged_parts = 2;
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(same(held_, run_.weights[2]));
  EXPECT_EQ(road_.damaged_parts, 0);
}

TEST_F(ReceiverTest, GivesUpOnWhatStaysDamagedAndStaysUsable) {
  announce();
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  road_.damaged_parts = 1'000'000;
  const auto start = std::chrono::steady_clock::now();
  const Status status = update().status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.to_string();
  EXPECT_NE(status.message().find("gave up after 300 ms"), std::string_view::npos);
  EXPECT_NE(status.message().find("version 1"), std::string_view::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s) << "within its deadline";
  EXPECT_TRUE(same(held_, run_.weights[0]));
  EXPECT_EQ(receiver_->commit().status().code(), StatusCode::kInvalidArgument);
  road_.damaged_parts = 0;
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[1]));
}

Publication with_damage(Publication made) {
  made.parts.begin()->second.back() ^= std::byte{1};
  return made;
}

TEST_F(ReceiverTest, AnAnchorLeadsPastAVersionThatStaysIncomplete) {
  announce();
  ASSERT_TRUE(open().ok());
  publish(1, 1);
  road_.part_failures.assign(10'000, error(StatusCode::kIncomplete, "cut short"));
  EXPECT_EQ(update().status().code(), StatusCode::kIncomplete);
  EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  send(*sender_, run_.anchor(1));
  road_.part_failures.resize(1);  // the version's
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(done->anchor);
  EXPECT_TRUE(same(held_, run_.weights[1]));
}

TEST_F(ReceiverTest, AnAnchorLeadsPastAVersionThatStaysDamaged) {
  announce();
  ASSERT_TRUE(open().ok());
  send(*sender_, with_damage(run_.step(1)));
  for (int tries = 0; tries < 2; ++tries) {
    EXPECT_EQ(update().status().code(), StatusCode::kCorrupt);
    EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  }
  publish(2, 2);
  EXPECT_EQ(update().status().code(), StatusCode::kCorrupt);
  send(*sender_, run_.anchor(2));
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(done->anchor);
  EXPECT_TRUE(same(held_, run_.weights[2]));
  EXPECT_TRUE((*sender_->receivers())[0].proof.starts_with(to_hex(digest_of(run_.weights[2]))));
  publish(3, 3);
  ASSERT_TRUE(update().ok());
}

// The anchor is on the road already.
TEST_F(ReceiverTest, TakesAnAnchorInPlaceOfAVersionThatStaysDamaged) {
  announce();
  ASSERT_TRUE(open().ok());
  send(*sender_, with_damage(run_.step(1)));
  send(*sender_, run_.anchor(1));
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(same(held_, run_.weights[1]));
}

// It is reported every time, and not fetched again and again.
TEST_F(ReceiverTest, AnAnchorThatIsDamagedTooIsReported) {
  announce();
  ASSERT_TRUE(open().ok());
  const Publication step = with_damage(run_.step(1)), anchor = with_damage(run_.anchor(1));
  send(*sender_, step);
  send(*sender_, anchor);
  EXPECT_EQ(update().status().code(), StatusCode::kCorrupt);
  for (int tries = 0; tries < 3; ++tries) {
    road_.parts = 0;
    const Status status = update().status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.to_string();
    EXPECT_LE(road_.parts, static_cast<int>(step.parts.size() + anchor.parts.size()));
    EXPECT_TRUE(same(held_, run_.weights[0]));
  }
  publish(2, 2);
  send(*sender_, run_.anchor(2));
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[2]));
}

// Its parts have the hashes in the manifest, and a tensor that the manifest does not list.
TEST_F(ReceiverTest, AnAnchorLeadsPastAVersionThatContradictsItself) {
  announce();
  ASSERT_TRUE(open().ok());
  Publication made = run_.step(1);
  const auto odd = std::ranges::find_if(made.manifest.tensors, [&](const ManifestTensor& tensor) {
    return run_.layout[*run_.layout.find(tensor.name)].size_bytes > 0;
  });
  ASSERT_NE(odd, made.manifest.tensors.end());
  made.manifest.tensors.erase(odd);
  --made.manifest.changed_tensors;
  send(*sender_, made);
  EXPECT_EQ(update().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(update().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase);
  EXPECT_EQ((*sender_->receivers())[0].proof, kAnchorWanted);
  publish(2, 2);
  send(*sender_, run_.anchor(2));
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[2]));
}

TEST_F(ReceiverTest, ReturnsOtherFailuresAtOnce) {
  announce();
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  road_.part_failures = {error(StatusCode::kIo, "unplugged")};
  EXPECT_EQ(update().status().code(), StatusCode::kIo);
  EXPECT_EQ(road_.parts, 1);
  EXPECT_TRUE(update().ok());
}

TEST_F(ReceiverTest, TheEngineIsNotResumedAfterAForeignWrite) {
  announce();
  publish(1, 1);
  int resumed = 0;
  options_.pause = [&] {  // somebody writes into the weights, where the step changes them
    for (auto& [name, tensor] : held_) {
      for (std::byte& byte : tensor.bytes) byte ^= std::byte{1};
    }
    return Status();
  };
  options_.resume = [&] { return ++resumed, Status(); };
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(update().status().code(), StatusCode::kMismatch);
  EXPECT_EQ(resumed, 0);
  EXPECT_FALSE(receiver_->state().valid);
  EXPECT_EQ(reported(), 0U);
}

TEST_F(ReceiverTest, APauseThatFailsLeavesEverythingAndCanBeTriedAgain) {
  announce();
  publish(1, 1);
  int resumed = 0;
  Status pause = error(StatusCode::kIo, "the engine does not answer");
  options_.pause = [&] { return pause; };
  options_.resume = [&] { return ++resumed, Status(); };
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(update().status().code(), StatusCode::kIo);
  EXPECT_EQ(resumed, 0);
  EXPECT_TRUE(same(held_, run_.weights[0]));
  EXPECT_EQ(reported(), 0U);
  pause = {};
  ASSERT_TRUE(receiver_->commit().ok()) << "what was staged is still there";
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(same(held_, run_.weights[1]));
}

TEST_F(ReceiverTest, AFailedResumeIsReportedAndTheCommitHolds) {
  announce();
  publish(1, 1);
  options_.resume = [] { return error(StatusCode::kIo, "the engine does not answer"); };
  ASSERT_TRUE(open().ok());
  const Status status = update().status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("version 1 is committed"), std::string_view::npos);
  EXPECT_TRUE(same(held_, run_.weights[1]));
  EXPECT_EQ(reported(), 1U);
}

// No step changes "model.norm": only the sweep reads it.
TEST_F(ReceiverTest, AFlippedBitIsFoundWhileStagingAndHealedByAnAnchor) {
  announce();
  publish(1, 2);
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(update().ok());
  publish(3, 3);
  held_.at("model.norm.weight").bytes[7] ^= std::byte{4};
  const Status found = update().status();
  EXPECT_EQ(found.code(), StatusCode::kMismatch);
  EXPECT_NE(found.message().find("model.norm.weight"), std::string_view::npos) << found.message();
  EXPECT_FALSE(receiver_->state().valid);
  EXPECT_FALSE(update().ok()) << "there is no full version yet";
  send(*sender_, run_.anchor(3));
  const auto healed = update();
  ASSERT_TRUE(healed.ok()) << healed.status().to_string();
  EXPECT_TRUE(healed->anchor);
  EXPECT_TRUE(same(held_, run_.weights[3]));
  publish(4, 4);
  EXPECT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[4]));
}

TEST_F(ReceiverTest, ASweepInThePauseLeavesNoVersionThatIsNotProven) {
  announce();
  publish(1, 1);
  options_.proof.always = true;
  int resumed = 0;
  options_.pause = [&] {
    held_.at("model.norm.weight").bytes[7] ^= std::byte{4};
    return Status();
  };
  options_.resume = [&] { return ++resumed, Status(); };
  ASSERT_TRUE(open().ok());
  const Status found = update().status();
  EXPECT_EQ(found.code(), StatusCode::kMismatch);
  EXPECT_NE(found.message().find("model.norm.weight"), std::string_view::npos) << found.message();
  EXPECT_NE(found.message().find("left paused"), std::string_view::npos) << found.message();
  EXPECT_EQ(resumed, 0);
  EXPECT_EQ(held_.at("model.embed.weight").bytes, run_.weights[0].at("model.embed.weight").bytes)
      << "what was written is taken back";
}

TEST_F(ReceiverTest, AReportThatFailsIsNoFailedCommit) {
  announce();
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  road_.report_failures = {error(StatusCode::kIo, "no route")};
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  ASSERT_EQ(done->notes.size(), 1U);
  EXPECT_NE(done->notes[0].find("no route"), std::string::npos);
  EXPECT_EQ(reported(), 0U);
  ASSERT_TRUE(receiver_->report().ok());
  EXPECT_EQ(reported(), 1U);
}

// On files, a report takes several syncs. They are not part of the update.
TEST_F(ReceiverTest, AnUpdateIsDoneBeforeItIsReported) {
  announce();
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  std::optional<std::chrono::steady_clock::time_point> last;
  road_.at_report = [&] { last = std::chrono::steady_clock::now(); };
  const auto before = std::chrono::steady_clock::now();
  const auto update_report = update();
  ASSERT_TRUE(update_report.ok()) << update_report.status().to_string();
  ASSERT_TRUE(update_report->done.has_value());
  ASSERT_TRUE(last.has_value());
  EXPECT_GE(*update_report->done, before);
  EXPECT_LE(*update_report->done, *last);
}

TEST_F(ReceiverTest, AStrandedReceiverWarnsOfReportsThatTheRoadRefuses) {
  announce();
  unsigned warned = 0;
  options_.fetch_deadline = std::chrono::milliseconds(2500);
  options_.warn = [&](const Status& status) { warned += status.code() == StatusCode::kIo ? 1 : 0; };
  ASSERT_TRUE(open().ok());
  publish(1, 10);  // the first two are gone
  road_.report_failures.assign(1000, error(StatusCode::kIo, "this directory is read-only"));
  Result<bool> staged = false;
  while (staged.ok()) staged = receiver_->stage_patiently(soon());
  EXPECT_EQ(staged.status().code(), StatusCode::kWrongBase) << staged.status().to_string();
  EXPECT_GE(warned, 2U);
  EXPECT_GE(receiver_->counts().failed_reports, 2U);
}

TEST_F(ReceiverTest, RollbackTakesTheLastCommitBack) {
  announce();
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(receiver_->rollback().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(update().ok());
  publish(2, 3);
  ASSERT_TRUE(update().ok());
  EXPECT_EQ(reported(), 3U);
  ASSERT_TRUE(receiver_->rollback().ok());
  EXPECT_TRUE(same(held_, run_.weights[1]));
  EXPECT_EQ(reported(), 1U);
  ASSERT_TRUE(*receiver_->stage(soon()));
  ASSERT_TRUE(receiver_->rollback().ok()) << "drops what is staged";
  EXPECT_EQ(receiver_->commit().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[3]));
}

TEST_F(ReceiverTest, KeepsACheckpointDirectoryAndTakesUpWhereItWas) {
  TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.file("copy"), run_.weights[0]);
  announce();
  publish(1, 3);
  for (const std::uint64_t expected : {3U, 5U}) {
    if (expected == 5) publish(4, 5);
    auto target = make_checkpoint_target(posix_file_system(), dir.file("copy"), 1);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    ASSERT_TRUE(open_on(**target).ok());
    const auto done = update();
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(done->version, expected);
    EXPECT_TRUE(holds(dir.file("copy"), run_.weights[expected]));
    EXPECT_EQ(receiver_->rollback().code(), StatusCode::kUnsupported);
    receiver_.reset();
  }
}

TEST_F(ReceiverTest, WaitsForTheAnnouncement) {
  const auto target = make_memory_target(run_.layout, pointers(run_.weights[0]), VersionId{}, 1);
  const Status status = Receiver::open(options_, road_, **target, Deadline::after(20ms)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace driftless::testing
