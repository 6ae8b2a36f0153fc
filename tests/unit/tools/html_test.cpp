// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/html.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace driftless {
namespace {

TEST(Html, EscapesWhatHasAMeaning) {
  EXPECT_EQ(html_escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_escape("ünï 層\n"), "ünï 層\n");
}

TEST(Html, ReplacesWhatIsNoText) {
  EXPECT_EQ(html_escape(std::string_view("a\0b\x1b", 4)), "a\\u0000b\\u001b");
  EXPECT_EQ(html_escape("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(html_escape("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(html_escape("\xc0\xbc<"), "\\xc0\\xbc&lt;");      // '<', written too long
  EXPECT_EQ(html_escape("a\u202eb\u200bc\u009b"), "a\\u202eb\\u200bc\\u009b");
}

TEST(Html, AxesNameWhatTheyShow) {
  HtmlPage page("t", "");
  page.panel("p");
  page.lines({{"1", "2", "3"}, {{"a", {1, 2, 3}}}, "version", "bits per change"});
  page.heat_map({{"0"}, {"1", "2"}, {{0.5, 0.25}}});
  const std::string text = page.finish();
  for (const char* label : {">bits per change</text>", ">version 1</text>", ">2</text>",
                            ">3</text>", ">layer</text>"}) {
    EXPECT_NE(text.find(label), std::string::npos) << label;
  }
}

TEST(Html, JoinsNeighboursOfALargeHeatMap) {
  HeatMap map;
  map.rows = {"layer"};
  for (int i = 0; i < 401; ++i) map.columns.push_back(std::to_string(i));
  map.cells = {std::vector<std::optional<double>>(401, 0.5)};
  map.cells[0][0] = std::nullopt;
  map.cells[0][1] = 0.25;
  const HeatMap joined = downsampled(map);
  ASSERT_EQ(joined.columns.size(), kMostHeatColumns);
  EXPECT_EQ(joined.columns.front(), "0 to 1");
  EXPECT_EQ(joined.columns.back(), "398 to 400");
  EXPECT_EQ(joined.cells[0][0], 0.25);  // the mean of what is known
  EXPECT_EQ(joined.cells[0][7], 0.5);
}

TEST(Html, KeepsASmallHeatMap) {
  const HeatMap map{{"a", "b"}, {"1"}, {{0.1}, {std::nullopt}}};
  const HeatMap same = downsampled(map);
  EXPECT_EQ(same.rows, map.rows);
  EXPECT_EQ(same.cells, map.cells);
}

TEST(Html, EmptyDiagramsAreNoFailure) {
  HtmlPage page("t", "");
  page.panel("p");
  page.heat_map({});
  page.lines({});
  page.bars({"a", "b", ""}, {});
  page.table({"a"}, {});
  const std::string text = page.finish();
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf\""), std::string::npos);
}

TEST(Html, APageIsNotOverwritten) {
  const testing::TempDir dir;
  FileSystem& fs = posix_file_system();
  const std::string path = dir.file("page.html");
  ASSERT_TRUE(write_page(fs, path, "one", false).ok());
  EXPECT_EQ(write_page(fs, path, "two", false).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*read_text(fs, path, 100), "one");
  ASSERT_TRUE(write_page(fs, path, "two", true).ok());
  EXPECT_EQ(*read_text(fs, path, 100), "two");
}

}  // namespace
}  // namespace driftless
