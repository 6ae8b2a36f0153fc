// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>

#include "formats/safetensors.h"
#include "support/faulty_file_system.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::bytes_of;
using testing::Fault;

constexpr std::uint64_t kRoom = 4096;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  SafetensorsWriter create(std::uint64_t room = kRoom) {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(fs_, path_, room);
    EXPECT_TRUE(writer.ok()) << writer.status().to_string();
    return std::move(*writer);
  }
  static void add(SafetensorsWriter& writer, const std::string& name, std::string_view data) {
    ASSERT_TRUE(writer.begin_tensor(name, DType::kU8).ok());
    ASSERT_TRUE(writer.append(bytes_of(data)).ok());
    const Status ended = writer.end_tensor({data.size()});
    ASSERT_TRUE(ended.ok()) << ended.to_string();
  }
  Result<SafetensorsFile> read() { return SafetensorsFile::open(posix_file_system(), path_); }
  static void expect_invalid(const Status& status, std::string_view in_message) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find(in_message), std::string_view::npos) << status.to_string();
    EXPECT_NE(status.message().find("w.safetensors"), std::string_view::npos);
  }

  testing::TempDir dir_;
  std::string path_ = dir_.file("w.safetensors");
  testing::FaultyFileSystem fs_{Fault::kNone, 0, dir_.path()};
};

TEST_F(SafetensorsWriterTest, WritesTheseBytes) {
  SafetensorsWriter writer = create();
  add(writer, "b\"", "xyz");
  add(writer, "a", "");
  ASSERT_TRUE(writer.add_metadata("k2", "é\n").ok());
  ASSERT_TRUE(writer.add_metadata("k1", "v").ok());
  const Result<std::uint64_t> size = writer.finish();
  ASSERT_TRUE(size.ok()) << size.status().to_string();
  const std::string json = R"({"__metadata__":{"k1":"v","k2":"é\n"},)"
                           R"("b\"":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                           R"("a":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  const std::string expected = testing::file_of(padded, 0) + "xyz";
  EXPECT_EQ(content(path_), expected);
  EXPECT_EQ(*size, expected.size());
  EXPECT_EQ(fs_.log().syncs, 1);
}

TEST_F(SafetensorsWriterTest, WritesIntoAnOpenFileAndReadsHeldContent) {
  SafetensorsWriter by_path = create();
  add(by_path, "t", "data");
  ASSERT_TRUE(by_path.finish().ok());
  auto file = fs_.create(dir_.file("v.safetensors"));
  ASSERT_TRUE(file.ok());
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(std::move(*file), kRoom);
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  add(*writer, "t", "data");
  ASSERT_TRUE(writer->finish().ok());
  const auto text = std::make_shared<std::string>(content(dir_.file("v.safetensors")));
  EXPECT_EQ(*text, content(path_));

  MappedFile held("part 7", text, std::as_bytes(std::span(*text)));
  const auto opened = SafetensorsFile::open(std::move(held));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->bytes(*opened->find("t")).data(),
            reinterpret_cast<const std::byte*>(text->data()) + text->size() - 4);
  const auto cut =
      SafetensorsFile::open({"part 7", text, std::as_bytes(std::span(*text).first(9))});
  EXPECT_EQ(cut.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(cut.status().message().find("part 7"), std::string_view::npos);
}

TEST_F(SafetensorsWriterTest, RefusesAHeaderAboveTheFormatsBoundBeforeThereIsAFile) {
  const auto refused =
      SafetensorsWriter::create(fs_, path_, kMaxSafetensorsHeaderBytes + 1).status();
  expect_invalid(refused, "header");
  EXPECT_FALSE(exists(fs_, path_));
}

TEST_F(SafetensorsWriterTest, RoundTripsEveryDtype) {
  SafetensorsWriter writer = create();
  std::vector<TensorSpec> specs;
  std::vector<std::vector<std::byte>> data;
  for (const DTypeInfo& dtype : all_dtypes()) {
    for (const std::vector<std::uint64_t>& shape :
         {std::vector<std::uint64_t>{4, 3}, std::vector<std::uint64_t>{0, 2}}) {
      const std::string name = concat(dtype.name, shape[0]);
      specs.push_back(*TensorSpec::make(name, dtype.dtype, shape));
      data.push_back(random_bytes(specs.back().size_bytes, dtype.bits));
      ASSERT_TRUE(writer.begin_tensor(name, dtype.dtype).ok());
      ASSERT_TRUE(writer.append(data.back()).ok());
      ASSERT_TRUE(writer.end_tensor(shape).ok());
    }
  }
  ASSERT_TRUE(writer.begin_tensor("scalar", DType::kF64).ok());
  ASSERT_TRUE(writer.append(random_bytes(8, 1)).ok());
  ASSERT_TRUE(writer.end_tensor({}).ok());
  ASSERT_TRUE(writer.finish().ok());
  const Result<SafetensorsFile> file = read();
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->header().data_offset % 8, 0U);
  ASSERT_EQ(file->header().tensors.size(), specs.size() + 1);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const SafetensorsEntry* entry = file->find(specs[i].name);
    ASSERT_NE(entry, nullptr) << specs[i].name;
    EXPECT_EQ(entry->spec, specs[i]);
    const auto bytes = file->bytes(*entry);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), data[i].begin(), data[i].end()));
  }
}

TEST_F(SafetensorsWriterTest, WritesAFileWithoutTensors) {
  SafetensorsWriter writer = create(0);
  EXPECT_EQ(*writer.finish(), 16U);
  const Result<SafetensorsFile> file = read();
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_TRUE(file->header().tensors.empty());
  EXPECT_TRUE(file->header().metadata.empty());
}

TEST_F(SafetensorsWriterTest, WritesMetadataAlone) {
  SafetensorsWriter writer = create();
  ASSERT_TRUE(writer.add_metadata("only", "this").ok());
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(read()->header().metadata.at("only"), "this");
}

// Pieces of every kind, small and large, must arrive whole and in order.
TEST_F(SafetensorsWriterTest, PiecesOfAnySizeArriveInOrder) {
  const std::vector<std::byte> data = random_bytes(7 * kSafetensorsBufferBytes + 12345, 7);
  SafetensorsWriter writer = create();
  std::mt19937_64 random(3);
  std::size_t at = 0;
  std::vector<std::pair<std::size_t, std::size_t>> tensors;
  for (int tensor = 0; at < data.size(); ++tensor) {
    const std::size_t begin = at;
    ASSERT_TRUE(writer.begin_tensor(concat("t", tensor), DType::kU8).ok());
    for (std::uint64_t pieces = random() % 4; pieces > 0 && at < data.size(); --pieces) {
      const std::size_t limit = random() % 3 == 0 ? 3 * kSafetensorsBufferBytes : 300'000;
      const std::size_t count = std::min<std::size_t>(random() % limit, data.size() - at);
      ASSERT_TRUE(writer.append(std::span(data).subspan(at, count)).ok());
      at += count;
    }
    ASSERT_TRUE(writer.end_tensor({at - begin}).ok());
    tensors.emplace_back(begin, at - begin);
  }
  ASSERT_TRUE(writer.finish().ok());
  const Result<SafetensorsFile> file = read();
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->header().data_offset, 8 + kRoom);  // too large for a header of exact size
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = file->bytes(*file->find(concat("t", i)));
    ASSERT_EQ(bytes.size(), tensors[i].second);
    EXPECT_TRUE(bytes.empty() ||
                std::memcmp(bytes.data(), data.data() + tensors[i].first, bytes.size()) == 0);
  }
}

TEST_F(SafetensorsWriterTest, GathersSmallPiecesAndHoldsBackNoMoreThanItsBuffer) {
  SafetensorsWriter writer = create();
  ASSERT_TRUE(writer.begin_tensor("t", DType::kU8).ok());
  const std::vector<std::byte> piece(1000);
  std::uint64_t appended = 0;
  while (appended < 5 * kSafetensorsBufferBytes) {
    ASSERT_TRUE(writer.append(piece).ok());
    appended += piece.size();
    const std::uint64_t written = std::accumulate(fs_.log().write_bytes.begin(),
                                                  fs_.log().write_bytes.end(), std::uint64_t{0});
    ASSERT_LT(appended - written, kSafetensorsBufferBytes);
  }
  for (const std::uint64_t bytes : fs_.log().write_bytes) EXPECT_GE(bytes, kSafetensorsBufferBytes);
  // A large piece goes out at once.
  const std::vector<std::byte> large(4 * kSafetensorsBufferBytes);
  const std::size_t before = fs_.log().write_bytes.size();
  ASSERT_TRUE(writer.append(large).ok());
  EXPECT_LE(fs_.log().write_bytes.size() - before, 2U);
  ASSERT_TRUE(writer.end_tensor({appended + large.size()}).ok());
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_TRUE(read().ok());
}

TEST_F(SafetensorsWriterTest, FillsTheReservedRoomOfALargeFile) {
  SafetensorsWriter writer = create(1001);
  add(writer, "a", std::string(kSafetensorsBufferBytes, 'x'));
  const Result<std::uint64_t> size = writer.finish();
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(*size, 8 + 1008 + kSafetensorsBufferBytes);
  const std::string file = content(path_);
  EXPECT_EQ(file.size(), *size);
  EXPECT_EQ(file.substr(8 + 1000, 8), "        ");
  EXPECT_TRUE(read().ok());
}

TEST_F(SafetensorsWriterTest, TheBoundHoldsAndIsTight) {
  const std::vector<std::string> names = {"plain", "qu\"ote\\", "é", std::string(300, 'n')};
  const std::map<std::string, std::string> metadata = {{"a", "\n\t"}, {"b", std::string(90, '"')}};
  const std::uint64_t large = kSafetensorsBufferBytes;  // of 7 digits: 1048576
  const std::uint64_t room = SafetensorsWriter::header_bytes_for(names, 1, metadata, 4 * large);
  SafetensorsWriter writer = create(room);
  for (const std::string& name : names) {
    ASSERT_TRUE(writer.begin_tensor(name, DType::kF8E4M3Fnuz).ok());
    ASSERT_TRUE(writer.append(std::vector<std::byte>(large)).ok());
    ASSERT_TRUE(writer.end_tensor({large}).ok());
  }
  for (const auto& [key, value] : metadata) ASSERT_TRUE(writer.add_metadata(key, value).ok());
  ASSERT_TRUE(writer.finish().ok());
  const std::string file = content(path_);
  const std::size_t padding = 8 + room - (file.find_last_of('}', 8 + room - 1) + 1);
  EXPECT_LE(padding, 8U + 6U);  // the first offset is 0, the last comma is not there
  EXPECT_TRUE(read().ok());
}

TEST_F(SafetensorsWriterTest, TheDefaultBoundHoldsForTheLargestNumbers) {
  const std::vector<std::string> names = {"a", "b"};
  const std::uint64_t room = SafetensorsWriter::header_bytes_for(names, 3, {});
  const std::string most = "9223372036854775807";
  const std::string numbers = concat('[', most, ',', most, ',', most, ']');
  const std::string offsets = concat('[', most, ',', most, ']');
  const std::string header =
      testing::object({testing::entry("a", "F8_E4M3FNUZ", numbers, offsets),
                       testing::entry("b", "F8_E4M3FNUZ", numbers, offsets)});
  EXPECT_GE(room, header.size());
  EXPECT_LE(room, header.size() + 8);
}

TEST_F(SafetensorsWriterTest, ASmallFileHasNoPaddingBeyondAlignment) {
  const std::vector<std::string> names = {"a"};
  SafetensorsWriter writer = create(SafetensorsWriter::header_bytes_for(names, 5, {}));
  add(writer, "a", "abc");
  ASSERT_TRUE(writer.finish().ok());
  const std::string file = content(path_);
  const std::string json = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(file.size(), 8 + (json.size() + 7) / 8 * 8 + 3);
}

TEST_F(SafetensorsWriterTest, RefusesTooLittleRoom) {
  SafetensorsWriter writer = create(16);
  add(writer, "a", "abc");
  EXPECT_EQ(writer.finish().status().code(), StatusCode::kInternal);
  EXPECT_FALSE(read().ok());
}

TEST_F(SafetensorsWriterTest, RefusesAHeaderAboveTheCap) {
  const Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(fs_, path_, kMaxSafetensorsHeaderBytes + 1);
  expect_invalid(writer.status(), "100000000");
  EXPECT_FALSE(exists(fs_, path_));
}

TEST_F(SafetensorsWriterTest, NeverOverwrites) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(SafetensorsWriter::create(fs_, path_, kRoom).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(content(path_), "precious");
}

TEST_F(SafetensorsWriterTest, RefusesNamesThatAreTakenOrBad) {
  SafetensorsWriter writer = create();
  add(writer, "a", "x");
  expect_invalid(writer.begin_tensor("a", DType::kU8), "'a'");
  expect_invalid(writer.begin_tensor("__metadata__", DType::kU8), "__metadata__");
  expect_invalid(writer.begin_tensor("", DType::kU8), "empty");
  expect_invalid(writer.begin_tensor("a\nb", DType::kU8), "control");
  expect_invalid(writer.begin_tensor("a\xff", DType::kU8), "UTF-8");
  expect_invalid(writer.begin_tensor("\xed\xa0\x80", DType::kU8), "UTF-8");
  add(writer, "b", "y");
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(read()->header().tensors.size(), 2U);
}

TEST_F(SafetensorsWriterTest, RefusesMetadataThatIsTakenOrBad) {
  SafetensorsWriter writer = create();
  ASSERT_TRUE(writer.add_metadata("k", "v").ok());
  expect_invalid(writer.add_metadata("k", "w"), "'k'");
  expect_invalid(writer.add_metadata("x\xff", "w"), "UTF-8");
  expect_invalid(writer.add_metadata("x", "\xc0\x80"), "UTF-8");
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(read()->header().metadata, (std::map<std::string, std::string>{{"k", "v"}}));
}

TEST_F(SafetensorsWriterTest, RefusesAShapeThatDisagreesWithTheBytes) {
  SafetensorsWriter writer = create();
  ASSERT_TRUE(writer.begin_tensor("a", DType::kBF16).ok());
  ASSERT_TRUE(writer.append(bytes_of("abc")).ok());
  expect_invalid(writer.end_tensor({1}), "3 were appended");
  expect_invalid(writer.end_tensor({2}), "3 were appended");
  expect_invalid(writer.end_tensor({1ULL << 62, 4}), "overflow");
  ASSERT_TRUE(writer.append(bytes_of("d")).ok());
  EXPECT_TRUE(writer.end_tensor({2}).ok());
  EXPECT_TRUE(writer.finish().ok());
}

TEST_F(SafetensorsWriterTest, RefusesCallsOutOfOrder) {
  SafetensorsWriter writer = create();
  expect_invalid(writer.append(bytes_of("a")), "outside");
  expect_invalid(writer.end_tensor({0}), "outside");
  ASSERT_TRUE(writer.begin_tensor("a", DType::kU8).ok());
  expect_invalid(writer.begin_tensor("b", DType::kU8), "'a' has not ended");
  expect_invalid(writer.finish().status(), "'a' has not ended");
  ASSERT_TRUE(writer.end_tensor({0}).ok());
  ASSERT_TRUE(writer.finish().ok());
  expect_invalid(writer.finish().status(), "finished");
  expect_invalid(writer.begin_tensor("c", DType::kU8), "finished");
  expect_invalid(writer.add_metadata("k", "v"), "finished");
}

TEST_F(SafetensorsWriterTest, AWriteThatFailsIsReportedAndStays) {
  SafetensorsWriter writer = create();
  fs_.plan(Fault::kFull, fs_.calls() + 1);
  ASSERT_TRUE(writer.begin_tensor("a", DType::kU8).ok());
  const std::vector<std::byte> piece(kSafetensorsBufferBytes);
  ASSERT_TRUE(writer.append(piece).ok());
  EXPECT_EQ(writer.append(piece).code(), StatusCode::kNoSpace);
  fs_.plan(Fault::kNone, 0);  // space again: what is missing in the middle stays missing
  EXPECT_EQ(writer.append(piece).code(), StatusCode::kNoSpace);
  EXPECT_EQ(writer.end_tensor({piece.size()}).code(), StatusCode::kNoSpace);
  EXPECT_EQ(writer.finish().status().code(), StatusCode::kNoSpace);
  EXPECT_FALSE(read().ok());
}

TEST_F(SafetensorsWriterTest, EveryFailingWriteFailsTheFile) {
  for (std::uint64_t failing = 0; failing < 3; ++failing) {
    path_ = dir_.file(concat("w.safetensors", failing));
    fs_.plan(Fault::kNone, 0);
    SafetensorsWriter writer = create();
    fs_.plan(Fault::kFull, fs_.calls() + failing);
    bool failed = !writer.begin_tensor("a", DType::kU8).ok();
    const std::vector<std::byte> piece(kSafetensorsBufferBytes + 1);
    failed = !writer.append(piece).ok() || failed;  // write 0
    failed = !writer.end_tensor({piece.size()}).ok() || failed;
    failed = !writer.finish().ok() || failed;  // writes 1 and 2
    EXPECT_TRUE(failed) << failing;
    EXPECT_FALSE(read().ok()) << failing;
  }
}

TEST_F(SafetensorsWriterTest, ASyncThatFailsIsReported) {
  SafetensorsWriter sound = create();
  add(sound, "a", "abc");
  ASSERT_TRUE(sound.finish().ok());
  const std::uint64_t calls = fs_.calls();  // the sync is the last
  path_ = dir_.file("again.safetensors");
  SafetensorsWriter writer = create();
  add(writer, "a", "abc");
  fs_.plan(Fault::kEio, 2 * calls - 1);
  EXPECT_EQ(writer.finish().status().code(), StatusCode::kIo);
  EXPECT_EQ(fs_.log().syncs, 2);
  // After a failed sync the kernel may have dropped the pages: a second one proves nothing.
  EXPECT_EQ(writer.finish().status().code(), StatusCode::kIo);
}

TEST_F(SafetensorsWriterTest, WithoutFinishThereIsNoValidFile) {
  {
    SafetensorsWriter writer = create();
    add(writer, "a", std::string(2 * kSafetensorsBufferBytes, 'x'));
  }
  EXPECT_TRUE(exists(fs_, path_));
  EXPECT_EQ(read().status().code(), StatusCode::kCorrupt);
}

TEST_F(SafetensorsWriterTest, AWriterCanMove) {
  SafetensorsWriter first = create();
  add(first, "a", "abc");
  SafetensorsWriter second = std::move(first);
  add(second, "b", "de");
  ASSERT_TRUE(second.finish().ok());
  EXPECT_EQ(read()->header().tensors.size(), 2U);
}

TEST_F(SafetensorsWriterTest, TruncationAtEveryByteIsRefused) {
  SafetensorsWriter writer = create();
  add(writer, "a", "0123456789");
  ASSERT_TRUE(writer.add_metadata("k", "v").ok());
  ASSERT_TRUE(writer.finish().ok());
  const std::string file = content(path_);
  for (std::size_t cut = 0; cut < file.size(); ++cut) {
    EXPECT_FALSE(parse_safetensors_header(bytes_of(file).first(cut), cut, "x").ok()) << cut;
  }
}

}  // namespace
}  // namespace driftless
