// SPDX-License-Identifier: Apache-2.0
#include "tools/synth.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "support/faulty_file_system.h"
#include "support/temp_dir.h"
#include "tools/qwen3_shape.h"

namespace driftless {
namespace {

using testing::Fault;
using testing::FaultyFileSystem;
using testing::TempDir;

class Synth : public ::testing::Test {
 protected:
  [[nodiscard]] SynthOptions options(const std::string& name) const {
    SynthOptions options;
    options.out = dir_.file(name);
    options.params = 120'000;
    options.steps = 2;
    options.seed = 7;
    options.threads = 2;
    return options;
  }
  SynthReport run(const SynthOptions& options) {
    const auto report = synthesize(fs_, options);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.ok() ? *report : SynthReport();
  }
  // Every file below a directory, by its path there.
  std::map<std::string, std::string> files(const std::string& directory) {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (!entry.is_regular_file()) continue;
      const auto text = read_text(fs_, entry.path().string(), 1 << 30);
      EXPECT_TRUE(text.ok());
      found[entry.path().lexically_relative(directory).string()] = text.ok() ? *text : "";
    }
    return found;
  }

  TempDir dir_;
  FileSystem& fs_ = posix_file_system();
};

TEST_F(Synth, WritesReadableCheckpointsOfAQwen3) {
  const SynthReport report = run(options("out"));
  ASSERT_EQ(report.directories.size(), 3U);
  EXPECT_EQ(report.directories[2], dir_.file("out/step_000002"));
  EXPECT_EQ(*fs_.list(dir_.file("out")),
            (std::vector<std::string>{"step_000000", "step_000001", "step_000002"}));
  const auto tensors = qwen3_tensors(*qwen3_shape(120'000));
  const auto expected = WeightLayout::make(*tensors);
  for (const std::string& directory : report.directories) {
    EXPECT_EQ(*fs_.list(directory), (std::vector<std::string>{"config.json", "model.safetensors"}));
    const auto checkpoint = Checkpoint::open(fs_, directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    EXPECT_TRUE(checkpoint->layout().check_same(*expected, "found", "expected").ok());
    EXPECT_EQ(checkpoint->layout().total_units(), report.params);
    EXPECT_EQ(checkpoint->layout().total_bytes(), report.bytes_per_step);
    const auto file = SafetensorsFile::open(fs_, directory + "/model.safetensors");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->header().metadata.at("format"), "pt");
  }
}

TEST_F(Synth, DensityIsThatOfRlAndWhatTheFilesHold) {
  SynthOptions wanted = options("out");
  wanted.params = 2'000'000;
  const SynthReport report = run(wanted);
  ASSERT_EQ(report.density.size(), 2U);
  for (std::size_t step = 1; step <= 2; ++step) {
    const auto before = Checkpoint::open(fs_, report.directories[step - 1]);
    const auto after = Checkpoint::open(fs_, report.directories[step]);
    ASSERT_TRUE(before.ok() && after.ok());
    std::uint64_t changed = 0;
    for (std::size_t i = 0; i < before->layout().size(); ++i) {
      const auto a = before->tensor(i).bytes();
      const auto b = after->tensor(i).bytes();
      for (std::size_t at = 0; at < a.size(); at += 2) {
        changed += a[at] != b[at] || a[at + 1] != b[at + 1] ? 1 : 0;
      }
    }
    const double density = report.density[step - 1];
    EXPECT_DOUBLE_EQ(density, static_cast<double>(changed) / static_cast<double>(report.params));
    EXPECT_GT(density, 0.005);
    EXPECT_LT(density, 0.03);
  }
}

TEST_F(Synth, BytesDoNotDependOnTheNumberOfThreads) {
  SynthOptions wanted = options("one");
  wanted.params = 3'000'000;
  wanted.threads = 1;
  run(wanted);
  const auto one = files(dir_.file("one"));
  EXPECT_EQ(one.size(), 6U);
  for (const unsigned threads : {2U, 5U}) {
    wanted.out = dir_.file(concat("out", threads));
    wanted.threads = threads;
    run(wanted);
    EXPECT_TRUE(files(wanted.out) == one) << threads;
  }
}

TEST_F(Synth, EarlierStepsDoNotDependOnTheNumberOfSteps) {
  SynthOptions wanted = options("two");
  run(wanted);
  wanted.out = dir_.file("forty");
  wanted.steps = 40;
  run(wanted);
  auto forty = files(dir_.file("forty"));
  for (const auto& [name, content] : files(dir_.file("two"))) {
    EXPECT_TRUE(forty[name] == content) << name;
  }
}

// The bytes never change, on any processor: published figures were measured with them.
TEST_F(Synth, BytesAreFixed) {
  const SynthReport report = run(options("out"));
  const std::vector<std::string> expected{"db6d5f1b088fac08066b8ea94f2a0944",
                                          "6ac5176b5a059457b72dc8aa9d8a517f",
                                          "d697ec08ab12f96cd2eb22ed1b674a5a"};
  for (std::size_t step = 0; step < report.directories.size(); ++step) {
    const auto checkpoint = Checkpoint::open(fs_, report.directories[step]);
    ASSERT_TRUE(checkpoint.ok());
    std::string all;
    for (std::size_t i = 0; i < checkpoint->layout().size(); ++i) {
      const auto bytes = checkpoint->tensor(i).bytes();
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    EXPECT_EQ(to_hex(xxh3_128(all)), expected[step]) << step;
  }
}

TEST_F(Synth, SeedAndLearningRateMatter) {
  run(options("a"));
  SynthOptions other_seed = options("b");
  other_seed.seed = 8;
  run(other_seed);
  EXPECT_FALSE(files(dir_.file("a/step_000000")) == files(dir_.file("b/step_000000")));
  SynthOptions still = options("still");
  still.lr = 0;
  EXPECT_EQ(run(still).density, (std::vector<double>{0, 0}));
  EXPECT_TRUE(files(dir_.file("still/step_000000")) == files(dir_.file("a/step_000000")));
}

TEST_F(Synth, LargeCheckpointsAreSharded) {
  SynthOptions wanted = options("sharded");
  wanted.shard_bytes = 60'000;
  const SynthReport sharded = run(wanted);
  const SynthReport whole = run(options("whole"));
  const auto names = *fs_.list(sharded.directories[1]);
  ASSERT_GE(names.size(), 5U);
  EXPECT_EQ(names[1].substr(0, 15), "model-00001-of-");
  EXPECT_EQ(names.back(), "model.safetensors.index.json");
  const auto a = Checkpoint::open(fs_, sharded.directories[1]);
  const auto b = Checkpoint::open(fs_, whole.directories[1]);
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  ASSERT_TRUE(b.ok());
  EXPECT_GE(a->files().size(), 3U);
  ASSERT_TRUE(a->layout().check_same(b->layout(), "sharded", "whole").ok());
  for (std::size_t i = 0; i < a->layout().size(); ++i) {
    EXPECT_EQ(xxh3_128(a->tensor(i).bytes()), xxh3_128(b->tensor(i).bytes()));
  }
}

TEST_F(Synth, RefusesAnythingThatIsThere) {
  std::filesystem::create_directory(dir_.file("full"));
  ASSERT_TRUE(write_text(fs_, dir_.file("full/keep"), "x").ok());
  EXPECT_EQ(synthesize(fs_, options("full")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(files(dir_.file("full")), (std::map<std::string, std::string>{{"keep", "x"}}));
  ASSERT_TRUE(write_text(fs_, dir_.file("file"), "x").ok());
  EXPECT_EQ(synthesize(fs_, options("file")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*read_text(fs_, dir_.file("file"), 10), "x");
  std::filesystem::create_directory(dir_.file("empty"));
  EXPECT_TRUE(synthesize(fs_, options("empty")).ok());
  EXPECT_TRUE(synthesize(fs_, options("new/parents/too")).ok());
}

TEST_F(Synth, RefusesSenselessOptions) {
  std::vector<SynthOptions> senseless(7, options("out"));
  senseless[0].out = "";
  senseless[1].params = 10;
  senseless[2].lr = -1;
  senseless[3].lr = std::numeric_limits<double>::quiet_NaN();
  senseless[4].lr = std::numeric_limits<double>::infinity();
  senseless[5].steps = kMaxSynthSteps + 1;
  senseless[6].shard_bytes = 0;
  for (const SynthOptions& wanted : senseless) {
    EXPECT_EQ(synthesize(fs_, wanted).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(exists(fs_, dir_.file("out")));
  }
}

TEST_F(Synth, ProgressReachesTheEnd) {
  SynthOptions wanted = options("out");
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  wanted.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  const SynthReport report = run(wanted);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 3 * report.bytes_per_step);
}

// Whichever file operation fails, no file is left.
TEST_F(Synth, AFailureAtAnyCallLeavesNothing) {
  SynthOptions wanted = options("out");
  wanted.params = kMinQwen3Params;
  wanted.steps = 1;
  wanted.shard_bytes = 80'000;
  const std::string stash = dir_.file("stash");
  ASSERT_TRUE(fs_.make_directory(stash).ok());
  FaultyFileSystem sound(Fault::kNone, 0, stash);
  ASSERT_TRUE(synthesize(sound, wanted).ok());
  ASSERT_TRUE(remove_tree(fs_, wanted.out).ok());
  ASSERT_GT(sound.calls(), 20U);
  for (std::uint64_t call = 0; call < sound.calls(); ++call) {
    FaultyFileSystem failing(Fault::kFull, call, stash);
    EXPECT_EQ(synthesize(failing, wanted).status().code(), StatusCode::kNoSpace) << call;
    ASSERT_FALSE(exists(fs_, wanted.out)) << call;
  }
}

}  // namespace
}  // namespace driftless
