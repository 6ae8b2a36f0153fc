// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::bytes_of;
using testing::entry;
using testing::file_of;
using testing::object;

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(bytes_of(file), file.size(), "x.safetensors");
}

void expect_refused(const std::string& file, std::string_view in_message,
                    StatusCode code = StatusCode::kCorrupt) {
  const Result<SafetensorsHeader> header = parse(file);
  ASSERT_FALSE(header.ok()) << "accepted; expected: " << in_message;
  const Status& status = header.status();
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_NE(status.message().find("x.safetensors"), std::string_view::npos) << status.to_string();
  EXPECT_NE(status.message().find(in_message), std::string_view::npos) << status.to_string();
  EXPECT_EQ(status.message().find('\n'), std::string_view::npos) << status.to_string();
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirOffsets) {
  const std::string header =
      object({entry("a", "BF16", "[2,3]", "[4,16]"), entry("b", "F32", "[]", "[0,4]"),
              R"("__metadata__":{"format":"pt","k":"é"})"});
  const std::string file = file_of(header, 16);
  const Result<SafetensorsHeader> parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->data_offset, 8 + header.size());
  ASSERT_EQ(parsed->tensors.size(), 2U);
  EXPECT_EQ(parsed->tensors[0].spec, *TensorSpec::make("b", DType::kF32, {}));
  EXPECT_EQ(parsed->tensors[0].file_offset, parsed->data_offset);
  EXPECT_EQ(parsed->tensors[1].spec, *TensorSpec::make("a", DType::kBF16, {2, 3}));
  EXPECT_EQ(parsed->tensors[1].file_offset, parsed->data_offset + 4);
  EXPECT_EQ(parsed->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"k", "é"}}));
}

TEST(SafetensorsHeader, NeedsOnlyTheHeaderPresent) {
  const std::string header = object({entry("a", "U8", "[1099511627776]", "[0,1099511627776]")});
  const std::string file = file_of(header, 0);
  const Result<SafetensorsHeader> parsed =
      parse_safetensors_header(bytes_of(file), file.size() + 1099511627776, "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->tensors[0].spec.size_bytes, 1099511627776U);
}

TEST(SafetensorsHeader, TakesNoTensorsPaddingAndEmptyMetadata) {
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
  EXPECT_TRUE(parse(file_of("{}      ", 0)).ok());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{}})", 0)).ok());
  EXPECT_TRUE(parse(file_of(object({entry("a", "U8", "[3]", "[0,3]")}) + "   ", 3)).ok());
}

TEST(SafetensorsHeader, TakesEmptyTensorsAtEveryBoundary) {
  const std::string header =
      object({entry("z", "U8", "[2]", "[0,2]"), entry("b", "F32", "[0]", "[0,0]"),
              entry("a", "F32", "[0,5]", "[2,2]"), entry("d", "U8", "[1]", "[2,3]"),
              entry("c", "BF16", "[7,0,18446744073709551615]", "[3,3]")});
  const Result<SafetensorsHeader> parsed = parse(file_of(header, 3));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  std::string order;
  for (const SafetensorsEntry& tensor : parsed->tensors) order += tensor.spec.name;
  EXPECT_EQ(order, "bzadc");
  expect_refused(
      file_of(object({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[0]", "[2,2]")}), 4),
      "'b' begins at data offset 2");
}

TEST(SafetensorsHeader, RefusesALengthThatTheFileOrTheCapForbids) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  std::string file = file_of("{}", 0);
  file[0] = 3;
  expect_refused(file, "ends after 2");
  file = file_of("{}", 0);
  for (std::size_t i = 0; i < 8; ++i) file[i] = '\xff';
  expect_refused(file, "at most 100000000");
  // Above the cap even where the file is large enough; at the cap it is read.
  std::string head(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(100'000'001ULL >> (8 * i));
  const Result<SafetensorsHeader> above =
      parse_safetensors_header(bytes_of(head + "{}"), 1ULL << 40, "x");
  EXPECT_NE(above.status().message().find("at most"), std::string_view::npos);
  head[0] = static_cast<char>(head[0] - 1);
  const std::string at_cap = head + "{}" + std::string(100'000'000 - 2, ' ');
  EXPECT_TRUE(parse(at_cap).ok());
}

TEST(SafetensorsHeader, RefusesWhatIsNotAnObject) {
  expect_refused(file_of("", 0), "'{'");
  expect_refused(file_of("[]", 0), "'{'");
  expect_refused(file_of(" {}", 0), "'{'");
  expect_refused(file_of("{} x", 0), "JSON");
  expect_refused(file_of(std::string("{}\0\0", 4), 0), "NUL");
  expect_refused(file_of("{\"\xff\":1}", 0), "UTF-8");
}

TEST(SafetensorsHeader, RefusesDuplicates) {
  const std::string a = entry("a", "U8", "[0]", "[0,0]");
  expect_refused(file_of(object({a, a}), 0), "'a' twice");
  expect_refused(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "'k' twice");
  expect_refused(
      file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
      "'dtype' twice");
}

TEST(SafetensorsHeader, RefusesEntriesOfAnotherForm) {
  expect_refused(file_of(R"({"a":1})", 0), "'a'");
  expect_refused(file_of(R"({"a":[]})", 0), "'a'");
  expect_refused(file_of(R"({"a":{}})", 0), "'dtype' is missing");
  expect_refused(file_of(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0), "'shape' is missing");
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[0]}})", 0), "'data_offsets' is missing");
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
                 "4 keys");
  expect_refused(file_of(R"({"a":{"dtype":3,"shape":[0],"data_offsets":[0,0]}})", 0), "'dtype'");
  for (const std::string shape : {"0", "{}", "[-1]", "[1.0]", "[\"1\"]", "[[1]]", "[null]",
                                  "[18446744073709551616]", "[1e2]"}) {
    expect_refused(file_of(object({entry("a", "U8", shape, "[0,1]")}), 1), "'shape'");
  }
  for (const std::string offsets : {"0", "[]", "[0]", "[0,1,1]", "[1,0]", "[-1,0]", "[0,1.0]",
                                    "[\"0\",1]", "[0,18446744073709551616]"}) {
    expect_refused(file_of(object({entry("a", "U8", "[1]", offsets)}), 1), "data_offsets");
  }
}

TEST(SafetensorsHeader, RefusesAnUnknownDtypeNamingTheTensor) {
  expect_refused(file_of(object({entry("model.w", "F7", "[1]", "[0,1]")}), 1), "'model.w'",
                 StatusCode::kUnsupported);
  expect_refused(file_of(object({entry("a", "bf16", "[1]", "[0,2]")}), 2), "'bf16'",
                 StatusCode::kUnsupported);
}

TEST(SafetensorsHeader, RefusesEmptyLongAndControlCharacterNames) {
  expect_refused(file_of(object({entry("", "U8", "[0]", "[0,0]")}), 0), "empty");
  expect_refused(file_of(object({entry("a\\u0000b", "U8", "[0]", "[0,0]")}), 0), "control");
  expect_refused(file_of(object({entry(std::string(5000, 'n'), "U8", "[0]", "[0,0]")}), 0), "5000");
}

TEST(SafetensorsHeader, RefusesSizesThatDisagreeOrOverflow) {
  expect_refused(file_of(object({entry("a", "BF16", "[3]", "[0,5]")}), 5), "[0, 5] hold 5");
  expect_refused(file_of(object({entry("a", "F4", "[3]", "[0,2]")}), 2), "whole bytes");
  EXPECT_TRUE(parse(file_of(object({entry("a", "F4", "[4]", "[0,2]")}), 2)).ok());
  expect_refused(file_of(object({entry("a", "F64", "[4294967296,4294967296]", "[0,0]")}), 0),
                 "overflow");
  expect_refused(file_of(object({entry("a", "U8", "[18446744073709551615]", "[0,1]")}), 1),
                 "overflow");
}

TEST(SafetensorsHeader, RefusesHolesOverlapsAndBytesTooManyOrTooFew) {
  const std::string two = entry("b", "U8", "[2]", "[2,4]");
  expect_refused(file_of(object({two}), 4), "'b' begins at data offset 2, after a hole");
  expect_refused(file_of(object({entry("a", "U8", "[3]", "[0,3]"), two}), 4),
                 "'b' begins at data offset 2, inside");
  expect_refused(
      file_of(object({entry("a", "U8", "[2]", "[0,2]"), entry("c", "U8", "[2]", "[0,2]")}), 2),
      "inside");
  expect_refused(file_of(object({entry("a", "U8", "[2]", "[0,2]")}), 3), "data has 3");
  expect_refused(file_of(object({entry("a", "U8", "[2]", "[0,2]")}), 1), "cut short");
  expect_refused(file_of("{}", 1), "data has 1");
  const std::string end = "18446744073709551615";
  expect_refused(
      file_of(object({entry("a", "U8", "[1]", "[18446744073709551614," + end + "]")}), 1),
      "18446744073709551614");
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotStrings) {
  expect_refused(file_of(R"({"__metadata__":[]})", 0), "__metadata__");
  expect_refused(file_of(R"({"__metadata__":"x"})", 0), "__metadata__");
  expect_refused(file_of(R"({"__metadata__":{"version":7}})", 0), "'version'");
  expect_refused(file_of(R"({"__metadata__":{"a":{"b":"c"}}})", 0), "'a'");
}

TEST(SafetensorsHeader, RefusesTruncationAtEveryByte) {
  const std::string file = file_of(
      object({entry("a", "BF16", "[2,3]", "[0,12]"), R"("__metadata__":{"k":"v"})"}) + " ", 12);
  ASSERT_TRUE(parse(file).ok());
  for (std::size_t cut = 0; cut < file.size(); ++cut) {
    EXPECT_FALSE(parse(file.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(parse(file + "x").ok());
}

TEST(SafetensorsHeader, ReadsTwentyThousandTensorsQuickly) {
  std::string header = "{";
  for (int i = 0; i < 20'000; ++i) {
    if (i > 0) header += ',';
    header += entry(concat("layer.", i), "BF16", "[1]", concat('[', 2 * i, ',', 2 * i + 2, ']'));
  }
  const std::string file = file_of(header + "}", 40'000);
  const auto start = std::chrono::steady_clock::now();
  const Result<SafetensorsHeader> parsed = parse(file);
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->tensors.size(), 20'000U);
  EXPECT_LT(took, std::chrono::seconds(5));
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& content) {
    const std::string path = dir_.file("m.safetensors");
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  testing::TempDir dir_;
};

TEST_F(SafetensorsFileTest, MapsTensorsByName) {
  const std::string path = write(
      file_of(object({entry("b", "U8", "[2]", "[3,5]"), entry("a", "U8", "[3]", "[0,3]")}), 5));
  const Result<SafetensorsFile> file = SafetensorsFile::open(posix_file_system(), path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const SafetensorsEntry* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(static_cast<char>(file->bytes(*b)[0]), 'd');
  EXPECT_EQ(file->bytes(*b).size(), 2U);
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(file->find(""), nullptr);
}

TEST_F(SafetensorsFileTest, ErrorsNameTheFile) {
  const Status missing =
      SafetensorsFile::open(posix_file_system(), dir_.file("none.safetensors")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("none.safetensors"), std::string_view::npos);
  const std::string path = write("");
  const Status empty = SafetensorsFile::open(posix_file_system(), path).status();
  EXPECT_EQ(empty.code(), StatusCode::kCorrupt);
  EXPECT_NE(empty.message().find(path), std::string_view::npos);
  EXPECT_FALSE(SafetensorsFile::open(posix_file_system(), dir_.path()).ok());
}

}  // namespace
}  // namespace driftless
