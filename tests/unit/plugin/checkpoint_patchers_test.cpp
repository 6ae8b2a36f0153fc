// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/checkpoint_patchers.h"

#include <gtest/gtest.h>

#include "formats/receiver_needs.h"

namespace driftless {
namespace {

const std::string kPatchedDigest(32, 'd');

ReceiverReport memory_report(const std::string& id, std::uint64_t version) {
  return {id, version, kPatchedDigest, *needs_to_text(unknown_needs({1, 2}), kMaxNeedsBytes)};
}

ReceiverReport patcher_report(const std::string& id, const std::string& host,
                              const std::string& dir, std::uint64_t version,
                              const std::string& proof = kPatchedDigest) {
  ReceiverNeeds needs = unknown_needs({1, 2});
  needs.checkpoint = dir;
  needs.host = host;
  return {id, version, proof, *needs_to_text(needs, kMaxNeedsBytes)};
}

class CheckpointPatchersTest : public ::testing::Test {
 protected:
  void listen(const std::vector<ReceiverReport>& reports) { patchers_.listen(reports); }
  [[nodiscard]] std::string why(const std::string& directory) const {
    return std::string(patchers_.check(directory, 2, kPatchedDigest).message());
  }
  [[nodiscard]] bool patched(const std::string& directory) const { return why(directory).empty(); }

  CheckpointPatchers patchers_;
};

TEST_F(CheckpointPatchersTest, AReceiverInMemoryPatchesNothing) {
  EXPECT_FALSE(patched("/m"));
  listen({memory_report("evaluation", 2), {"old release", 2, kPatchedDigest, ""}});
  EXPECT_NE(why("/m").find("2 receivers report, and none"), std::string::npos) << why("/m");
  listen({memory_report("evaluation", 2), patcher_report("a", "one", "/m", 1)});
  EXPECT_NE(why("/m").find("'a', which patches /m on one, reports version 1"), std::string::npos)
      << why("/m");
  listen({memory_report("evaluation", 1), patcher_report("a", "one", "/m", 2, "another digest")});
  EXPECT_FALSE(patched("/m"));
  listen({memory_report("evaluation", 1), patcher_report("a", "one", "/m", 2)});
  EXPECT_TRUE(patched("/m")) << "and nobody waits for the others";
}

TEST_F(CheckpointPatchersTest, TheOneThatNamesTheDirectoryCountsElseAll) {
  listen({patcher_report("a", "one", "/m", 2), patcher_report("b", "two", "/n", 1)});
  EXPECT_TRUE(patched("/m"));
  EXPECT_TRUE(patched("/x/..//m/")) << "normalized";
  EXPECT_FALSE(patched("/n"));
  EXPECT_FALSE(patched("/in/a/container"));
  listen({patcher_report("a", "one", "/m", 2), patcher_report("b", "two", "/n", 2)});
  EXPECT_TRUE(patched("/in/a/container"));
}

TEST_F(CheckpointPatchersTest, OneThatIsGoneIsMissedUntilItsDirectoryIsPatchedAgain) {
  listen({patcher_report("a", "one", "/m", 2), patcher_report("b", "two", "/m", 2)});
  EXPECT_TRUE(patched("/m"));
  listen({patcher_report("a", "one", "/m", 2)});
  EXPECT_NE(why("/m").find("'b', which patches /m on two, is gone"), std::string::npos);
  EXPECT_FALSE(patched("/in/a/container"));
  listen({patcher_report("a", "one", "/m", 2), patcher_report("c", "two", "/m", 1)});
  EXPECT_FALSE(patched("/m")) << "it is back, and behind";
  listen({patcher_report("a", "one", "/m", 2), patcher_report("c", "two", "/m", 2)});
  EXPECT_TRUE(patched("/m"));
  listen({patcher_report("c", "two", "/m", 2)});
  listen({patcher_report("c", "two", "/m", 2), patcher_report("d", "three", "/m", 2)});
  EXPECT_TRUE(patched("/m")) << "a container has another name when it is started anew";
  listen({});
  EXPECT_FALSE(patched("/m"));
}

// The last report of a process that crashed stays for a while.
TEST_F(CheckpointPatchersTest, AllReportsOfOneCheckpointMustSayTheVersion) {
  listen({patcher_report("a", "one", "/m", 2), patcher_report("b", "one", "/m", 0)});
  EXPECT_FALSE(patched("/m"));
  listen({patcher_report("b", "one", "/m", 2)});
  EXPECT_TRUE(patched("/m"));
}

}  // namespace
}  // namespace driftless
