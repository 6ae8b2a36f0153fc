// SPDX-License-Identifier: Apache-2.0
#include "core/line_log.h"

#include <gtest/gtest.h>

#include "core/status.h"
#include "core/stopwatch.h"
#include "core/utc_time.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

class LineLogTest : public ::testing::Test {
 protected:
  // At `past` since the beginning, 2026-11-18T20:01:02.123Z.
  void add(std::string_view line, std::chrono::milliseconds past) { log_.add(line, at(past)); }
  [[nodiscard]] LineLog::Moment at(std::chrono::milliseconds past) const {
    return {begin_.steady + past, *parse_utc("2026-11-18T20:01:02.123Z") + past};
  }

  const LineLog::Moment begin_ = LineLog::Moment::now();
  std::vector<std::string> lines_;
  LineLog log_{[this](std::string_view line) { lines_.emplace_back(line); }};
};

TEST_F(LineLogTest, ALineHasATimeAndAName) {
  add("one", 0ms);
  log_.set_name("trainer.0");
  add("two", 1ms);
  add("a\nb\x1b[2J\xc2\x9b"
      "c\x7f",
      2ms);
  EXPECT_EQ(lines_,
            (std::vector<std::string>{
                "2026-11-18T20:01:02.123Z driftless: one\n",
                "2026-11-18T20:01:02.124Z driftless trainer.0: two\n",
                "2026-11-18T20:01:02.125Z driftless trainer.0: a b\\u001b[2J\\u009bc\\u007f\n"}));
}

TEST(OneLine, HasNothingHiddenAndNoPassword) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain, \xc3\xa9 and \xf0\x9f\x98\x80", "plain, \xc3\xa9 and \xf0\x9f\x98\x80"},
      {"a\nb\tc\r", "a b c "},
      {std::string("nul\0.", 5), "nul\\u0000."},
      {"gpj.\xe2\x80\xae"
       "exe",
       "gpj.\\u202eexe"},
      {"zero\xe2\x80\x8bwidth\xef\xbb\xbf", "zero\\u200bwidth\\ufeff"},
      {"tag\xf3\xa0\x81\x81", "tag\\ue0041"},
      {"variant\xef\xb8\x8f\xf3\xa0\x84\x80", "variant\\ufe0f\\ue0100"},
      {"latin\x9b[2J, cut \xe2\x80", "latin\\x9b[2J, cut \\xe2\\x80"},
      {"overlong \xc0\xae, surrogate \xed\xa0\x80",
       "overlong \\xc0\\xae, surrogate \\xed\\xa0\\x80"},
      {"io: http://me:s3cret@e:1/x: refused", "io: http://e:1/x: refused"},
      {"s3://k:w@b and https://a@b@c:8/d@e", "s3://b and https://c:8/d@e"},
      {"mail@host, 3://", "mail@host, 3://"},
  };
  for (const auto& [text, shown] : cases) EXPECT_EQ(one_line(text), shown);
}

TEST_F(LineLogTest, ARepeatedLineIsCounted) {
  for (int i = 0; i <= 14; ++i) add("no reply", i * 1s);
  EXPECT_EQ(lines_.size(), 1U);
  add("another", 30s);
  ASSERT_EQ(lines_.size(), 3U);
  EXPECT_EQ(lines_[1],
            "2026-11-18T20:01:32.123Z driftless: no reply (repeated 14 times in 30 s)\n");
  EXPECT_EQ(lines_[2], "2026-11-18T20:01:32.123Z driftless: another\n");
}

TEST_F(LineLogTest, OneThatGoesOnRepeatingIsWrittenOnceAWindow) {
  for (int second = 0; second <= 90; ++second) add("no reply", second * 1s);
  ASSERT_EQ(lines_.size(), 4U);
  for (int i = 1; i < 4; ++i) {
    EXPECT_NE(
        lines_[i].find(i == 1 ? "(repeated 29 times in 30 s)" : "(repeated 30 times in 30 s)"),
        std::string::npos)
        << lines_[i];
  }
}

TEST_F(LineLogTest, LinesThatTakeTurnsAreCountedEach) {
  for (int i = 0; i < 6; ++i) add(i % 2 == 0 ? "a" : "b", i * 1s);
  EXPECT_EQ(lines_.size(), 2U);
  log_.flush(at(6s));
  log_.flush(at(7s));
  ASSERT_EQ(lines_.size(), 4U);
  EXPECT_NE(lines_[2].find("a (repeated 2 times in 6 s)"), std::string::npos);
}

TEST_F(LineLogTest, AfterAQuietWindowALineIsNewAgain) {
  add("a", 0s);
  add("a", 31s);
  EXPECT_EQ(lines_.size(), 2U);
}

TEST_F(LineLogTest, ManyLinesAreNotKept) {
  add("first", 0s);
  add("first", 0s);
  for (std::size_t i = 0; i < LineLog::kMostRecent; ++i) add(std::to_string(i), 1s);
  ASSERT_EQ(lines_.size(), LineLog::kMostRecent + 2);
  EXPECT_NE(lines_[LineLog::kMostRecent].find("first (repeated 1 time in 1 s)"), std::string::npos);
}

TEST(UtcTest, ReadsWhatItWrites) {
  for (const char* const text : {"2026-11-18T20:01:02.123Z", "1999-12-31T23:59:59.999Z"}) {
    EXPECT_EQ(utc_text(parse_utc(text).value()), text);
  }
  EXPECT_EQ(utc_text(parse_utc("2028-02-29T00:00:00Z").value()), "2028-02-29T00:00:00.000Z");
  EXPECT_TRUE(parse_utc(utc_now()).has_value());
  for (const char* const text :
       {"", "Z", "2026-11-18", "2026-11-18 20:01:02Z", "2026-13-18T20:01:02Z",
        "2026-02-29T00:00:00Z", "2026-11-18T24:01:02Z", "2026-11-18T20:01:02.12Z",
        "2026-11-18T20:0a:02Z", "2026-11-18T20:01:02.123z", "2026-11-18T20:01:02.123ZZ",
        "-026-11-18T20:01:02Z"}) {
    EXPECT_FALSE(parse_utc(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace driftless
