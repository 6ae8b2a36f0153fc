// SPDX-License-Identifier: Apache-2.0
#include "formats/run_info.h"

#include <gtest/gtest.h>

#include "support/delta_model.h"
#include "support/replaced.h"

namespace driftless {
namespace {

using testing::layout_of;
using testing::replaced;
using testing::spec;

RunInfo example_run() {
  RunInfo info;
  info.run = {1, 2};
  info.layout = layout_of({spec("model.\"a\" \xc3\xa9", DType::kBF16, {3, 1ULL << 40}),
                           spec("scalar", DType::kF32, {}), spec("zero", DType::kF4, {0, 7})});
  info.base_digest = Digest{{5, 6}};
  info.ranks = 3;
  return info;
}

StatusCode run_code_of(const std::string& text) {
  return parse_run_info(text, "r").status().code();
}

TEST(RunInfoTest, RoundTrips) {
  const RunInfo info = example_run();
  const auto parsed = parse_run_info(run_info_to_json(info), "r");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->run, info.run);
  EXPECT_EQ(parsed->ranks, 3U);
  EXPECT_EQ(parsed->base_digest, info.base_digest);
  EXPECT_TRUE(parsed->layout.check_same(info.layout, "a", "b").ok());
  EXPECT_TRUE(std::ranges::equal(parsed->layout.tensors(), info.layout.tensors()));
  EXPECT_EQ(run_info_to_json(*parsed), run_info_to_json(info));
}

TEST(RunInfoTest, TensorsMayHaveDigests) {
  RunInfo info = example_run();
  info.tensor_digests = {Digest{{1, 1}}, Digest{{4, 3}}, Digest{{0, 2}}};
  const std::string text = run_info_to_json(info);
  const auto parsed = parse_run_info(text, "r");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->tensor_digests, info.tensor_digests);
  EXPECT_TRUE(parse_run_info(run_info_to_json(example_run()), "r")->tensor_digests.empty());
  EXPECT_EQ(run_code_of(replaced(text, to_hex(Digest{{4, 3}}), to_hex(Digest{{4, 4}}))),
            StatusCode::kCorrupt)
      << "they do not add up to the base's";
  EXPECT_EQ(run_code_of(replaced(text, R"("digest":)", R"("gone":)")), StatusCode::kCorrupt)
      << "all, or none";
}

TEST(RunInfoTest, TensorsOfTheBaseThatAreNotPublishedAreRecorded) {
  RunInfo info = example_run();
  info.unpublished = {{spec("lm_head", DType::kBF16, {4, 2}), Digest{{1, 9}}},
                      {spec("tower", DType::kF32, {}), Digest{{8, 3}}}};
  const std::string text = run_info_to_json(info);
  const auto parsed = parse_run_info(text, "r");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->unpublished, info.unpublished);
  EXPECT_EQ(run_info_to_json(*parsed), text) << "a resumed run is announced again as it is";
  EXPECT_TRUE(parse_run_info(run_info_to_json(example_run()), "r")->unpublished.empty());
  EXPECT_EQ(run_code_of(replaced(text, "tower", "lm_head")), StatusCode::kCorrupt) << "twice";
  EXPECT_EQ(run_code_of(replaced(text, "tower", "a")), StatusCode::kCorrupt) << "not sorted";
  EXPECT_EQ(run_code_of(replaced(text, "tower", "zero")), StatusCode::kCorrupt) << "published, too";
  EXPECT_EQ(run_code_of(replaced(text, to_hex(Digest{{8, 3}}), "8")), StatusCode::kCorrupt);
}

TEST(RunInfoTest, TheRuleOfQuantizationIsRecorded) {
  RunInfo info = example_run();
  EXPECT_EQ(run_info_to_json(info).find("quantize_rule"), std::string::npos);
  info.quantize_rule = "of a later release";
  const std::string text = run_info_to_json(info);
  const auto parsed = parse_run_info(text, "r");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->quantize_rule, info.quantize_rule);
  const std::string rule = R"("of a later release")";
  EXPECT_EQ(run_code_of(replaced(text, rule, "7")), StatusCode::kCorrupt);
  EXPECT_EQ(run_code_of(replaced(text, rule, concat("\"", std::string(65, 'x'), "\""))),
            StatusCode::kCorrupt);
}

TEST(RunInfoTest, ARunWithoutTensorsIsOne) {
  RunInfo info = example_run();
  info.layout = layout_of({});
  EXPECT_EQ(run_code_of(run_info_to_json(info)), StatusCode::kOk);
}

TEST(RunInfoTest, PassesOverUnknownKeys) {
  const std::string text = run_info_to_json(example_run());
  EXPECT_EQ(run_code_of(replaced(text, "{", R"({"later":[1,{}],)")), StatusCode::kOk);
}

TEST(RunInfoTest, RefusesEveryMissingKeyAndCut) {
  const std::string text = run_info_to_json(example_run());
  for (const char* key : {"format", "format_version", "run", "ranks", "base_digest",
                          "weight_layout", "tensors", "name", "dtype", "shape"}) {
    EXPECT_EQ(run_code_of(replaced(text, concat("\"", key, "\":"), "\"gone\":")),
              StatusCode::kCorrupt)
        << key;
  }
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    ASSERT_EQ(run_code_of(text.substr(0, size)), StatusCode::kCorrupt) << size;
  }
}

TEST(RunInfoTest, RefusesWhatIsNotOfTheRun) {
  const std::string text = run_info_to_json(example_run());
  const auto refuses = [&text](const std::string& what, const std::string& by) {
    EXPECT_EQ(run_code_of(replaced(text, what, by)), StatusCode::kCorrupt) << what << " -> " << by;
  };
  refuses(to_hex(Hash128{1, 2}), to_hex(Hash128{}));
  refuses(R"("ranks":3)", R"("ranks":0)");
  refuses(R"("ranks":3)", R"("ranks":4294967296)");
  refuses(R"("ranks":3)", R"("ranks":"3")");
  refuses("driftless-run", "driftless-manifest");
  refuses(R"("shape":[3,)", R"("shape":[4,)");                      // another signature
  refuses(R"("shape":[3,)", R"("shape":[-3,)");                     // no extent
  refuses(R"("shape":[3,)", R"("shape":[9999999999,9999999999,)");  // too many bytes
  refuses("BF16", "F16");
  refuses("scalar", "zero");  // twice
  refuses("scalar", "zz");    // not sorted
  refuses("scalar", "");      // no name
}

TEST(RunInfoTest, RefusesWhatANewerReleaseWrote) {
  const std::string text = run_info_to_json(example_run());
  EXPECT_EQ(run_code_of(replaced(text, R"("format_version":1)", R"("format_version":2)")),
            StatusCode::kUnsupported);
  EXPECT_EQ(run_code_of(replaced(text, "BF16", "BF17")), StatusCode::kUnsupported);
}

TEST(RunInfoTest, ANameThatIsNotUtf8NeverPasses) {
  RunInfo info = example_run();
  info.layout = layout_of({spec("bad\xff", DType::kU8, {1})});
  EXPECT_EQ(run_code_of(run_info_to_json(info)), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless
