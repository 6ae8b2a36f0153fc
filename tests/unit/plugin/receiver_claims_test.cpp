// SPDX-License-Identifier: Apache-2.0
// The version that a target is claimed to hold is proven by the run's own digests when the receiver
// opens, or reported as unproven.
#include <filesystem>
#include <fstream>

#include "formats/checkpoint.h"
#include "plugin/targets/version_source.h"
#include "support/receiver_fixture.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

class ClaimTest : public ReceiverTest {
 protected:
  ClaimTest() { announce(); }

  Status claim(Weights weights, std::uint64_t version, const Hash128& run) {
    receiver_.reset();
    held_ = std::move(weights);
    auto target = make_memory_target(run_.layout, pointers(held_), VersionId{run, version}, 1);
    if (!target.ok()) return target.status();
    target_ = std::move(*target);
    return open_on(*target_);
  }
  // Versions of the run that are not on the road.
  void make(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t version = from; version <= to; ++version) {
      made_.push_back(run_.step(version));
    }
  }
  // The proof that it reports, without the run's id.
  std::string proof() {
    const std::string reported = sender_->receivers()->front().proof;
    return reported.substr(0, reported.find(kProofRun));
  }
  std::string unproven_proof() const {
    return concat(to_hex(target_->state().digest), kUnproven, run_.layout.size());
  }

  std::vector<Publication> made_;
};

TEST_F(ClaimTest, IsRefusedUnlessTheWeightsAreThatVersion) {
  publish(1, 4);
  for (const Hash128& run : {Hash128(), run_.run}) {
    for (const std::uint64_t held : {0U, 2U, 4U}) {
      const Status refused = claim(run_.weights[held], 3, run);
      EXPECT_EQ(refused.code(), StatusCode::kWrongBase) << "version " << held;
      EXPECT_NE(refused.message().find("are claimed to be version 3"), std::string_view::npos)
          << refused.to_string();
    }
    ASSERT_TRUE(claim(run_.weights[3], 3, run).ok());
    EXPECT_EQ(receiver_->unproven(), "");
    EXPECT_EQ(proof(), to_hex(digest_of(run_.weights[3])));
  }
  EXPECT_EQ(claim(run_.weights[1], 0, {}).code(), StatusCode::kWrongBase);
}

TEST_F(ClaimTest, IsProvenByTheVersionThatBuildsOnIt) {
  make(1, 3);
  publish(4, 4);
  EXPECT_EQ(claim(run_.weights[0], 3, run_.run).code(), StatusCode::kWrongBase);
  ASSERT_TRUE(claim(run_.weights[3], 3, run_.run).ok());
  EXPECT_EQ(receiver_->unproven(), "");
}

TEST_F(ClaimTest, IsProvenByAnAnchor) {
  make(1, 3);
  send(*sender_, run_.anchor(3));
  EXPECT_EQ(claim(run_.weights[2], 3, run_.run).code(), StatusCode::kWrongBase);
  ASSERT_TRUE(claim(run_.weights[3], 3, run_.run).ok());
  EXPECT_EQ(receiver_->unproven(), "");
}

TEST_F(ClaimTest, IsReportedAsUnprovenUntilAManifestProvesIt) {
  make(1, 3);
  ASSERT_TRUE(claim(run_.weights[3], 3, run_.run).ok());
  EXPECT_NE(receiver_->unproven().find("version 3"), std::string::npos) << receiver_->unproven();
  EXPECT_EQ(proof(), unproven_proof());
  EXPECT_EQ(update().status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(receiver_->unproven(), "");
  send(*sender_, made_[2]);
  EXPECT_EQ(update().status().code(), StatusCode::kDeadlineExceeded) << "nothing is newer";
  EXPECT_EQ(receiver_->unproven(), "");
  ASSERT_TRUE(receiver_->report().ok());
  EXPECT_EQ(proof(), to_hex(digest_of(run_.weights[3])));
}

TEST_F(ClaimTest, IsProvenByACommitAndUnprovenAfterARollback) {
  make(1, 3);
  ASSERT_TRUE(claim(run_.weights[3], 3, run_.run).ok());
  EXPECT_NE(receiver_->unproven(), "");
  send(*sender_, run_.step(4, DirectoryLayout::kFrames, Encoding::kFull));
  ASSERT_TRUE(update().ok());
  EXPECT_EQ(receiver_->unproven(), "");
  ASSERT_TRUE(receiver_->rollback().ok());
  EXPECT_NE(receiver_->unproven(), "");
  EXPECT_EQ(proof(), unproven_proof());
}

TEST_F(ClaimTest, ThatAManifestDisprovesLaterAsksForAnAnchor) {
  make(1, 3);
  ASSERT_TRUE(claim(run_.weights[2], 3, run_.run).ok()) << "nothing tells";
  send(*sender_, made_[2]);
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase);
  EXPECT_EQ(proof(), kAnchorWanted);
  publish(4, 4);
  EXPECT_EQ(update().status().code(), StatusCode::kWrongBase) << "it is not followed";
  EXPECT_TRUE(same(held_, run_.weights[2]));
  send(*sender_, run_.anchor(4));
  const auto done = update();
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_TRUE(same(held_, run_.weights[4]));
  EXPECT_EQ(receiver_->unproven(), "");
  EXPECT_EQ(proof(), to_hex(digest_of(run_.weights[4])));
}

// The old values that the anchor replaced include the foreign write: rollback() does not restore
// version 1.
TEST_F(ClaimTest, ARollbackAfterAForeignWriteHoldsNoVersion) {
  publish(1, 1);
  ASSERT_TRUE(open().ok());
  ASSERT_TRUE(update().ok());
  held_.begin()->second.bytes[0] ^= std::byte{1};
  send(*sender_, run_.step(2, DirectoryLayout::kFrames, Encoding::kFull));
  ASSERT_TRUE(update().ok());
  EXPECT_TRUE(same(held_, run_.weights[2]));
  const Status back = receiver_->rollback();
  EXPECT_EQ(back.code(), StatusCode::kMismatch) << back.to_string();
  EXPECT_FALSE(receiver_->state().valid);
  EXPECT_EQ(proof(), "") << "it holds nothing";
  ASSERT_TRUE(update().ok()) << "a full version is taken again";
  EXPECT_TRUE(same(held_, run_.weights[2]));
}

// Sparse files: nothing of them is read.
TEST_F(ClaimTest, FilesBesideTheWeightsThatAPublisherTakesPassTheReceivers) {
  constexpr std::uint64_t kEach = std::uint64_t{200} << 20;
  const TempDir base, trained;
  Publication full = run_.step(1, DirectoryLayout::kFrames, Encoding::kFull);
  for (const TempDir* dir : {&base, &trained}) {
    for (const char* name : {"a_table.json", "tokenizer.json", "config.json"}) {
      std::ofstream(dir->file(name)) << "{}";
      const bool small = std::string_view(name) == "config.json";
      std::filesystem::resize_file(dir->file(name), small ? 2 : kEach);
    }
    const auto found = open_companions(posix_file_system(), dir->path());
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_TRUE(found->files.contains("config.json")) << "the largest are left out";
    ASSERT_EQ(found->left_out.size(), 1U);
    EXPECT_NE(found->left_out.front().find(dir->file("tokenizer.json")), std::string::npos)
        << found->left_out.front();
    for (const auto& [name, file] : found->files) {
      full.manifest.files.push_back({name, file.bytes().size(), {}});
    }
  }
  const Status taken = check_sizes(full.manifest, run_.layout, "it");
  EXPECT_TRUE(taken.ok()) << taken.to_string();
  full.manifest.encoding = Encoding::kDeltas;  // which carries no such files
  EXPECT_EQ(check_sizes(full.manifest, run_.layout, "it").code(), StatusCode::kMismatch);
}

// Nothing of it is read, hashed or allocated.
TEST_F(ClaimTest, AVersionLargerThanItsLayoutAllowsIsNotRead) {
  Publication large = run_.step(1);
  for (const std::uint64_t bytes : {std::uint64_t{40} << 30, ~std::uint64_t{0} >> 1}) {
    large.manifest.files.front().size_bytes = bytes;
    EXPECT_EQ(check_sizes(large.manifest, run_.layout, "it").code(), StatusCode::kMismatch);
  }
  send(*sender_, large);
  ASSERT_TRUE(open().ok());
  const Status refused = update().status();
  EXPECT_EQ(refused.code(), StatusCode::kMismatch) << refused.to_string();
  EXPECT_NE(refused.message().find(large.manifest.files.front().name), std::string_view::npos)
      << refused.to_string();
  EXPECT_EQ(road_.parts, 0);
}

}  // namespace
}  // namespace driftless::testing
