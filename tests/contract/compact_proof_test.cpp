// SPDX-License-Identifier: Apache-2.0
// Damaged versions of `compact`, and good ones on other weights than their base: the target ends
// with the version's exact weights, or refuses and keeps its weights.
#include <gtest/gtest.h>

#include <fstream>

#include "plugin/targets/stage_ahead.h"
#include "support/frame_reseal.h"
#include "support/published_run.h"
#include "support/sharded_weights.h"

namespace driftless::testing {
namespace {

std::vector<FetchedVersion> chain_of(const Publication& step) {
  std::vector<FetchedVersion> chain;
  chain.push_back(step.fetched());
  return chain;
}

// A changed unit of the target has another value than the publisher's, with the same exponent. The
// version decodes, and the change of the digest is the right one.
TEST(CompactProof, AWrongUnitThatChangesIsFoundInACheckpoint) {
  PublishedRun run{random_weights(3)};
  run.weights.push_back(stepped_weights(run.weights[0], 1));
  const Publication step = run.step(1, DirectoryLayout::kFrames, Encoding::kCompact);
  const TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.path(), run.weights[0]);
  auto target = make_checkpoint_target(posix_file_system(), dir.path(), 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  ASSERT_TRUE((*target)->adopt_layout(run.layout).ok());
  (*target)->set_proof({false, 0});  // a sweep would find it, too
  const auto& before = run.weights[0].at("model.layers.0.up.weight").bytes;
  const auto& after = run.weights[1].at("model.layers.0.up.weight").bytes;
  const auto differs = std::ranges::mismatch(before, after).in1 - before.begin();
  Weights wrong = run.weights[0];
  wrong.at("model.layers.0.up.weight").bytes[static_cast<std::size_t>(differs) & ~std::size_t{1}] ^=
      std::byte{2};
  std::fstream file(dir.file("model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto at = text.find(std::string_view(reinterpret_cast<const char*>(before.data()), 64));
  ASSERT_NE(at, std::string::npos);
  file.seekp(static_cast<std::streamoff>(at) + (differs & ~std::ptrdiff_t{1}));
  file.put(static_cast<char>(wrong.at("model.layers.0.up.weight")
                                 .bytes[static_cast<std::size_t>(differs) & ~std::size_t{1}]));
  file.close();
  const auto staged = (*target)->stage(chain_of(step));
  EXPECT_EQ(staged.status().code(), StatusCode::kMismatch) << staged.status().to_string();
  EXPECT_NE(staged.status().message().find("model.layers.0.up.weight"), std::string::npos)
      << staged.status().to_string();
  EXPECT_TRUE(holds(dir.path(), wrong));
}

// Folding: a later version is decoded with the values that the earlier ones changed.
TEST(CompactProof, MixedVersionsAreFoldedIntoACheckpointAndIntoMemory) {
  PublishedRun run{random_weights(7)};
  std::vector<FetchedVersion> chain;
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kCompact, Encoding::kDeltasZstd,
                                  Encoding::kCompact, Encoding::kCompact}) {
    chain.push_back(run.step(chain.size() + 1, DirectoryLayout::kFrames, encoding).fetched());
  }
  const TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.path(), run.weights[0]);
  auto files = make_checkpoint_target(posix_file_system(), dir.path(), 1);
  Weights held = run.weights[0];
  auto memory = make_memory_target(run.layout, pointers(held), VersionId{}, 1);
  ASSERT_TRUE(files.ok() && memory.ok());
  for (WeightTarget* const target : {files->get(), static_cast<WeightTarget*>(memory->get())}) {
    auto staged = target->stage(chain);
    ASSERT_TRUE(staged.ok()) << staged.status().to_string();
    ASSERT_TRUE((*staged)->commit().ok());
    EXPECT_EQ(target->state().digest, digest_of(run.weights[5]));
  }
  EXPECT_TRUE(holds(dir.path(), run.weights[5]));
  EXPECT_TRUE(same(held, run.weights[5]));
}

// Changes bytes of a frame, and recomputes all hashes.
class ForgedFrames {
 public:
  explicit ForgedFrames(const Publication& good) : good_(good) {}

  Publication next() {
    Publication bad = good_;
    auto part = bad.parts.begin();
    std::advance(part, static_cast<std::ptrdiff_t>(random_() % bad.parts.size()));
    std::vector<std::byte>& frame = part->second;
    good_frame_ = frame;
    for (std::uint64_t i = 0; i <= random_() % 3; ++i) change(frame);
    reseal(frame);
    bad.list_parts();
    return bad;
  }

 private:
  void change(std::vector<std::byte>& frame) {
    constexpr std::uint64_t kNumbers[] = {
        0, 1, 2, 255, 256, 0xffff, 0x10000, 0xffffffff, std::uint64_t{1} << 63, ~std::uint64_t{0}};
    // Chooses the header, an index or a row as often as the tiles, which are longer.
    const std::uint64_t table = frame.size() - 16 - get<std::uint64_t>(good_frame_, 24);
    const std::uint64_t from = random_() % 4 == 0 ? 0 : random_() % 2 == 0 ? 128 : table;
    const std::uint64_t near = from + random_() % std::min<std::uint64_t>(frame.size() - from, 256);
    const std::uint64_t at = random_() % 4 == 0 ? random_() % frame.size() : near;
    const std::uint64_t width =
        std::min<std::uint64_t>(std::uint64_t{1} << (random_() % 4), frame.size() - at);
    if (random_() % 2 == 0) {
      frame[at] ^= static_cast<std::byte>(1U << (random_() % 8));
    } else {
      std::memcpy(frame.data() + at, &kNumbers[random_() % std::size(kNumbers)], width);
    }
  }

  const Publication& good_;
  std::vector<std::byte> good_frame_;  // to be changed
  std::mt19937_64 random_{5};
};

class ForgedCompact : public ::testing::Test {
 protected:
  ForgedCompact() {
    run_.weights.push_back(changed_weights(run_.weights[0], 1, 0.01));
    good_ = run_.step(1, DirectoryLayout::kFrames, Encoding::kCompact);
  }
  PublishedRun run_{quiet(random_weights(4))};
  Publication good_;
};

TEST_F(ForgedCompact, MemoryHoldsOneVersionOrTheOther) {
  ForgedFrames frames(good_);
  unsigned taken = 0;
  for (int i = 0; i < 3000; ++i) {
    Weights held = run_.weights[0];
    auto target = make_memory_target(run_.layout, pointers(held), VersionId{}, 1);
    ASSERT_TRUE(target.ok());
    (*target)->set_proof({false, 0});  // only the version's own proof
    std::vector<FetchedVersion> chain = chain_of(frames.next());
    chain[0].ahead = (*target)->begin_stage(chain[0].manifest, chain[0].manifest);
    for (const MappedFile& part : chain[0].parts) chain[0].ahead->add(part);
    const auto staged = (*target)->stage(std::move(chain));
    const bool done = staged.ok() && (*staged)->commit().ok();
    taken += done ? 1 : 0;
    ASSERT_TRUE(same(held, run_.weights[done ? 1 : 0])) << i;
  }
  EXPECT_LT(taken, 300U) << "that change nothing";
}

// Two ranks, each with half of the columns, which are blocks in the publication.
TEST(ForgedCompactSlices, HoldOneVersionOrTheOther) {
  std::mt19937_64 random(6);
  Weights base{{"a", random_tensor(DType::kF32, {64, 32}, random)},
               {"b", random_tensor(DType::kF8E5M2, {128, 64}, random)}};
  PublishedRun run{base};
  const Publication good = run.step(1, DirectoryLayout::kFrames, Encoding::kCompact);
  ForgedFrames frames(good);
  unsigned taken = 0;
  for (int i = -1; i < 500; ++i) {
    const Publication bad = i < 0 ? good : frames.next();
    for (const std::uint32_t rank : {0U, 1U}) {
      RankWeights held(run.layout, rank), wanted(run.layout, rank);
      for (RankWeights* each : {&held, &wanted}) {
        std::mt19937_64 places(rank);
        for (std::uint32_t tensor = 0; tensor < run.layout.size(); ++tensor) {
          const auto& shape = run.layout[tensor].shape;
          each->add(tensor, 0, shape[0], rank * shape[1] / 2, shape[1] / 2, places);
        }
      }
      MappedOptions options;
      options.initial = VersionId{};
      options.initial_digest = digest_of(run.weights[0]);
      held.load(run.weights[0]);
      held.open(options);
      const auto staged = held.target().stage(chain_of(bad));
      const bool done = staged.ok() && (*staged)->commit().ok();
      ASSERT_TRUE(done || i >= 0) << staged.status().to_string();
      taken += done ? 1 : 0;
      wanted.load(run.weights[done ? 1 : 0]);
      wanted.open(options);
      ASSERT_TRUE(held.target().sweep().ok());
      ASSERT_EQ(held.target().tracked(), wanted.target().tracked()) << i;
    }
  }
  EXPECT_LT(taken, 900U);
}

TEST_F(ForgedCompact, ACheckpointHoldsOneVersionOrTheOther) {
  ForgedFrames frames(good_);
  const TempDir dir(TempDir::Where::kMemory);
  write_checkpoint(dir.file("base"), run_.weights[0]);
  for (int i = 0; i < 300; ++i) {
    copy_directory(dir.file("base"), dir.file("held"));
    auto target = make_checkpoint_target(posix_file_system(), dir.file("held"), 1);
    ASSERT_TRUE(target.ok());
    const auto staged = (*target)->stage(chain_of(frames.next()));
    const bool done = staged.ok() && (*staged)->commit().ok();
    ASSERT_TRUE(holds(dir.file("held"), run_.weights[done ? 1 : 0])) << i;
  }
}

}  // namespace
}  // namespace driftless::testing
