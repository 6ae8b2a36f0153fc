// SPDX-License-Identifier: Apache-2.0
#include "formats/strict_json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace driftless {
namespace {

Status refusal(std::string_view text) {
  const Result<Json> parsed = parse_json(text, "x.json");
  if (!parsed.ok()) return parsed.status();
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

void expect_corrupt(std::string_view text, std::string_view in_message) {
  const Status status = refusal(text);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.to_string();
  EXPECT_NE(status.message().find("x.json"), std::string_view::npos) << status.to_string();
  EXPECT_NE(status.message().find(in_message), std::string_view::npos) << status.to_string();
  EXPECT_EQ(status.message().find('\n'), std::string_view::npos) << status.to_string();
  EXPECT_LT(status.message().size(), 500U);
}

TEST(StrictJson, BuildsTheSameValueAsThePlainParser) {
  const std::string text =
      R"( {"a":[1,-2,3.5,"x",null,true,[],{}],"b":{"c":{"a":1},"d":[[1],[2,[3]]]},"":"é\u00e9"} )";
  const Result<Json> parsed = parse_json(text, "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, Json::parse(text));
}

TEST(StrictJson, TakesScalarsAtTheTop) {
  for (const std::string text : {"1", "\"x\"", "null", "false", "[]"}) {
    const Result<Json> parsed = parse_json(text, "x");
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, Json::parse(text));
  }
}

TEST(StrictJson, RefusesDuplicateKeysAtEveryLevel) {
  expect_corrupt(R"({"a":1,"a":2})", "'a' twice");
  expect_corrupt(R"({"a":{"b":1,"c":2,"b":{}}})", "'b' twice");
  expect_corrupt(R"([[{"x":[{"deep":1,"deep":1}]}]])", "'deep' twice");
  expect_corrupt(R"({"a":1,"\u0061":2})", "'a' twice");
  EXPECT_TRUE(parse_json(R"({"a":{"a":[{"a":1},{"a":1}]}})", "x").ok());
}

TEST(StrictJson, CapsTheDepth) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "x").ok());
  expect_corrupt(nested(kMaxJsonDepth + 1), "64 levels");
  expect_corrupt(std::string(10'000'000, '['), "64 levels");
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += R"({"a":)";
  expect_corrupt(objects, "64 levels");
}

TEST(StrictJson, RefusesWhatIsNotUtf8) {
  for (const std::string bad :
       {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    expect_corrupt("{\"" + bad + "\":1}", "UTF-8");
    expect_corrupt("[\"" + bad + "\"]", "UTF-8");
  }
  expect_corrupt(R"(["\ud800"])", "surrogate");
  expect_corrupt("\xef\xbb\xbf{}", "byte order mark");
}

TEST(StrictJson, RefusesEverythingAfterTheValue) {
  for (const std::string text : {"{} x", "{}{}", "1 2", "[],", "{}/* */"})
    expect_corrupt(text, "byte");
  expect_corrupt(std::string("{}\0", 3), "NUL at byte 2");
  expect_corrupt(std::string("{}\0garbage", 10), "NUL at byte 2");
  expect_corrupt(std::string("[\"a\0b\"]", 7), "NUL at byte 3");
  EXPECT_TRUE(parse_json("{} \n\t ", "x").ok());
}

TEST(StrictJson, RefusesMalformedText) {
  for (const std::string text :
       {"",        " ",   "{",   "}",     "[1,]",     "{\"a\"}",   "{\"a\":}", "{a:1}",
        "{'a':1}", "nul", "NaN", "[NaN]", "Infinity", "-Infinity", "[1e999]",  "01",
        "+1",      ".5",  "1.",  "0x1",   "\"a",      "[\"\n\"]",  "--1",      "// x\n1"}) {
    expect_corrupt(text, "not valid JSON");
  }
}

TEST(StrictJson, MessagesStayShortAndOnOneLine) {
  expect_corrupt(concat("[\"", std::string(1'000'000, 'a'), "\n\"]"), "not valid JSON");
  const std::string key = concat('"', std::string(1'000'000, 'k'), R"(\n":1)");
  expect_corrupt(concat("{", key, ",", key, "}"), "twice");
}

TEST(StrictJson, ReadsMembers) {
  const Json object = Json::parse(R"({"s":"x","n":18446744073709551615,"z":0})");
  EXPECT_EQ(*json_string(object, "s", "w"), "x");
  EXPECT_EQ(*json_u64(object, "n", "w"), 18446744073709551615U);
  EXPECT_EQ(*json_u64(object, "z", "w"), 0U);
  EXPECT_EQ(**json_member(object, "s", "w"), "x");
}

TEST(StrictJson, NamesTheKeyThatIsMissingOrOfAnotherType) {
  const Json object = *parse_json(
      R"({"neg":-1,"big":18446744073709551616,"f":1.0,"e":1e3,"s":"5","null":null})", "w");
  for (const std::string key : {"neg", "big", "f", "e", "s", "null", "missing"}) {
    const Status status = json_u64(object, key, "w.json").status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << key;
    EXPECT_NE(status.message().find("w.json"), std::string_view::npos);
    EXPECT_NE(status.message().find("'" + key + "'"), std::string_view::npos) << status.to_string();
  }
  EXPECT_EQ(json_string(object, "f", "w").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(json_string(object, "missing", "w").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(json_member(Json::array(), "a", "w").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(json_member(Json(), "a", "w").status().code(), StatusCode::kCorrupt);
}

TEST(StrictJson, QuotesForJson) {
  EXPECT_EQ(*json_quote("a\"b\\\n\x01é", "w"), "\"a\\\"b\\\\\\n\\u0001é\"");
  const Status status = json_quote("a\xff", "w").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("w: "), std::string_view::npos);
}

TEST(StrictJson, ShowsForeignTextSafely) {
  EXPECT_EQ(shown("plain"), "'plain'");
  EXPECT_EQ(shown("a\nb"), "'a\\nb'");
  EXPECT_EQ(shown("a\xff"), "'a\xef\xbf\xbd'");
  EXPECT_EQ(shown("abcdef", 3), "'abc...'");
  EXPECT_EQ(shown("aé", 2), "'a\xef\xbf\xbd...'");  // cut inside the character
}

TEST(StrictJson, ParsesALargeHeaderQuickly) {
  std::string text = "{";
  for (int i = 0; i < 20'000; ++i) {
    text +=
        concat(i > 0 ? ",\"" : "\"", "model.layers.", i,
               R"(.mlp.experts.weight":{"dtype":"BF16","shape":[4096,4096],"data_offsets":[1,2]})");
  }
  text += "}";
  const auto start = std::chrono::steady_clock::now();
  const Result<Json> parsed = parse_json(text, "x");
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 20'000U);
  EXPECT_LT(took, std::chrono::seconds(5));  // tens of milliseconds; more only if quadratic
}

}  // namespace
}  // namespace driftless
