// SPDX-License-Identifier: Apache-2.0
#include "formats/flush_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "formats/zstd_stream.h"
#include "support/delta_model.h"
#include "support/temp_dir.h"
#include "support/zstd_bytes.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::Changes;
using testing::decode_all;
using testing::delta_at;
using testing::layout_of;
using testing::note;
using testing::OwnedDelta;
using testing::spec;
using testing::TempDir;

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

// A safetensors file's beginning: the header's length and the header.
Bytes with_length(const std::string& header) {
  const std::uint64_t length = header.size();
  Bytes bytes;
  for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(length >> (8 * i)));
  for (const char c : header) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

TEST(FlushFile, NamesAreThoseOfTheFormat) {
  EXPECT_EQ(flush_file_name(0, 0), "rank0000_flush000000.safetensors");
  EXPECT_EQ(flush_file_name(12, 345), "rank0012_flush000345.safetensors");
  EXPECT_EQ(flush_file_name(4'294'967'295U, 4'294'967'295U),
            "rank4294967295_flush4294967295.safetensors");
}

TEST(FlushFile, RoundTripsEveryTypeAndEncoding) {
  const TempDir dir;
  FileSystem& fs = posix_file_system();
  for (const Encoding encoding : {Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd}) {
    for (const DTypeInfo& dtype : all_dtypes()) {
      const WeightLayout layout =
          layout_of({spec("a \"quoted\"", dtype.dtype, {1000, 8}), spec("b", dtype.dtype, {8}),
                     spec("c", dtype.dtype, {1 << 20, 8})});
      BucketBuilder builder(layout, encoding);
      Changes expected;
      for (const auto& delta : {delta_at(layout, 2, 3, {0, 7, 100'000}),
                                delta_at(layout, 0, 0, {0, 1}), delta_at(layout, 1, 3, {0})}) {
        ASSERT_TRUE(builder.add(delta.view()).ok());
        note(expected, delta.view());
      }
      const std::string path =
          dir.file(std::string(dtype.name) + "-" + std::string(info(encoding).name));
      const auto size =
          write_flush_file(fs, path, layout, builder.view(), encoding, 7, {{"extra", "yes"}});
      ASSERT_TRUE(size.ok()) << size.status().message();
      EXPECT_EQ(*size, read_file(path).size());
      EXPECT_EQ(is_zstd_frame(read_file(path)), encoding == Encoding::kDeltasZstd);
      const auto file = FlushFile::open(fs, fs.map(path).value(), layout, 7, dir.path());
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(file->encoding(), encoding);
      EXPECT_EQ(file->metadata().at("extra"), "yes");
      EXPECT_EQ(decode_all(layout, file->buckets().front()).value(), expected) << dtype.name;
      ASSERT_TRUE(fs.remove_file(path).ok());
    }
  }
  EXPECT_TRUE(fs.list(dir.path())->empty()) << "a spool file was left behind";
}

TEST(FlushFile, GoesIntoAnOpenFileAndComesFromHeldContent) {
  const TempDir dir;
  FileSystem& fs = posix_file_system();
  const WeightLayout layout = layout_of({spec("a", DType::kBF16, {1000})});
  for (const Encoding encoding : {Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd}) {
    const std::string name(info(encoding).name);
    BucketBuilder builder(layout, encoding);
    ASSERT_TRUE(builder.add(delta_at(layout, 0, 0, {1, 2, 999}).view()).ok());
    ASSERT_TRUE(write_flush_file(fs, dir.file(name), layout, builder.view(), encoding, 7, {}).ok());
    auto file = fs.create(dir.file(name + "_part"));
    ASSERT_TRUE(file.ok());
    const auto size = write_flush_file(std::move(*file), layout, builder.view(), encoding, 7, {});
    ASSERT_TRUE(size.ok()) << size.status().message();
    const auto bytes = std::make_shared<Bytes>(read_file(dir.file(name + "_part")));
    EXPECT_EQ(*size, bytes->size());
    EXPECT_EQ(*bytes, read_file(dir.file(name)));

    const auto held = FlushFile::open(fs, {"part 3", bytes, *bytes}, layout, 7, dir.path());
    ASSERT_TRUE(held.ok()) << held.status().message();
    EXPECT_EQ(decode_all(layout, held->buckets().front()).value(),
              decode_all(layout, builder.view()).value());
    bytes->back() ^= std::byte{1};
    const auto damaged = FlushFile::open(fs, {"part 3", bytes, *bytes}, layout, 7, dir.path());
    EXPECT_EQ(damaged.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(damaged.status().message().find("part 3"), std::string_view::npos);
  }
}

TEST(FlushFile, ABucketWithoutChangesRoundTrips) {
  const TempDir dir;
  const WeightLayout layout = layout_of({spec("a", DType::kBF16, {10})});
  BucketBuilder builder(layout, Encoding::kDeltas);
  FileSystem& fs = posix_file_system();
  ASSERT_TRUE(
      write_flush_file(fs, dir.file("f"), layout, builder.view(), Encoding::kDeltas, 1, {}).ok());
  const auto file = FlushFile::open(fs, fs.map(dir.file("f")).value(), layout, 1, dir.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->buckets().front().entries.empty());
}

TEST(FlushFile, WritesWhatOtherReadersExpect) {
  const TempDir dir;
  const WeightLayout layout =
      layout_of({spec("a", DType::kBF16, {4, 5}), spec("b", DType::kBF16, {200'000})});
  BucketBuilder builder(layout, Encoding::kDeltas);
  ASSERT_TRUE(builder.add(delta_at(layout, 0, 0, {3, 4, 19}).view()).ok());
  ASSERT_TRUE(builder.add(delta_at(layout, 1, 0, {3, 100'000}).view()).ok());
  ASSERT_TRUE(write_flush_file(posix_file_system(), dir.file("f"), layout, builder.view(),
                               Encoding::kDeltas, 12, {})
                  .ok());
  const Bytes bytes = read_file(dir.file("f"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  const auto header =
      nlohmann::json::parse(reinterpret_cast<const char*>(bytes.data()) + 8,
                            reinterpret_cast<const char*>(bytes.data()) + 8 + length);
  EXPECT_EQ(header["__positions__"]["dtype"], "U8");
  EXPECT_EQ(header["__positions__"]["shape"], nlohmann::json::array({14}));
  EXPECT_EQ(header["__values__"]["dtype"], "BF16");
  EXPECT_EQ(header["__values__"]["shape"], nlohmann::json::array({5}));
  EXPECT_EQ(header["__values__"]["data_offsets"], nlohmann::json::array({0, 10}));
  const auto& metadata = header["__metadata__"];
  EXPECT_EQ(metadata["encoding"], "deltas");
  EXPECT_EQ(metadata["current_version"], "12");
  EXPECT_EQ(metadata["checksum"], flush_checksum(builder.view()));
  EXPECT_EQ(nlohmann::json::parse(metadata["params"].get<std::string>()), nlohmann::json::parse(R"([
    {"name":"a","dtype":"bfloat16","shape":[4,5],"pos_start":0,"pos_end":6,"pos_width":2,
     "val_start":0,"val_end":3},
    {"name":"b","dtype":"bfloat16","shape":[200000],"pos_start":6,"pos_end":14,"pos_width":4,
     "val_start":3,"val_end":5}])"));
}

TEST(FlushFile, WriterRefusesReservedKeysAndOtherCodings) {
  const TempDir dir;
  const WeightLayout layout = layout_of({spec("a", DType::kBF16, {10})});
  BucketBuilder builder(layout, Encoding::kDeltas);
  FileSystem& fs = posix_file_system();
  const auto write = [&](Encoding encoding, const std::map<std::string, std::string>& extra) {
    return write_flush_file(fs, dir.file("f"), layout, builder.view(), encoding, 1, extra)
        .status()
        .code();
  };
  EXPECT_EQ(write(Encoding::kDeltas, {{"checksum", "1"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(Encoding::kDeltas, {{"note", "\xff"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(Encoding::kIndices, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(Encoding::kXor, {}), StatusCode::kInvalidArgument);
  EXPECT_FALSE(exists(fs, dir.file("f")));
  EXPECT_EQ(write(Encoding::kDeltas, {}), StatusCode::kOk);
  EXPECT_EQ(write(Encoding::kDeltas, {}), StatusCode::kAlreadyExists);
}

// Files as others may write them: made from JSON, and opened with a layout of three tensors.
class ForeignFlush : public ::testing::Test {
 protected:
  using Json = nlohmann::json;
  const TempDir dir_;
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {4, 5}), spec("b", DType::kBF16, {200'000}),
                 spec("c", DType::kF16, {20})});
  Json params_ =
      Json::array({param("a", {4, 5}, 0, 4, 2, 0, 2), param("b", {200'000}, 4, 8, 4, 2, 3)});
  Json metadata_{{"encoding", "deltas"}, {"current_version", "3"}, {"writer", "somebody"}};
  Bytes positions_ = Bytes(8, std::byte{1});
  Bytes values_ = Bytes(6);
  std::string values_dtype_ = "BF16";
  bool compress_ = false;

  static Json param(const std::string& name, const Json& shape, int pos_start, int pos_end,
                    int width, int val_start, int val_end) {
    return {{"name", name},           {"dtype", "bfloat16"}, {"shape", shape},
            {"pos_start", pos_start}, {"pos_end", pos_end},  {"pos_width", width},
            {"val_start", val_start}, {"val_end", val_end}};
  }

  [[nodiscard]] Bytes make() const {
    Json metadata = metadata_;
    if (!metadata.contains("params")) metadata["params"] = params_.dump();
    if (!metadata.contains("checksum")) {
      const BucketView bucket{Encoding::kDeltas, DType::kBF16, {}, positions_, values_};
      metadata["checksum"] = flush_checksum(bucket);
    }
    for (auto it = metadata.begin(); it != metadata.end();) {
      it = it->is_null() ? metadata.erase(it) : std::next(it);
    }
    const std::size_t p = positions_.size(), v = values_.size();
    const Json header{
        {"__metadata__", metadata},
        {"__positions__", {{"dtype", "U8"}, {"shape", {p}}, {"data_offsets", {0, p}}}},
        {"__values__",
         {{"dtype", values_dtype_}, {"shape", {v / 2}}, {"data_offsets", {p, p + v}}}}};
    const std::string text = header.dump();
    Bytes bytes = with_length(text);
    bytes.insert(bytes.end(), positions_.begin(), positions_.end());
    bytes.insert(bytes.end(), values_.begin(), values_.end());
    return compress_ ? zstd_compress(bytes).value() : bytes;
  }

  Result<FlushFile> open_bytes(const Bytes& bytes) const {
    write_file(dir_.file("f"), bytes);
    return FlushFile::open(posix_file_system(), posix_file_system().map(dir_.file("f")).value(),
                           layout_, 3, dir_.path());
  }
  [[nodiscard]] StatusCode code() const { return open_bytes(make()).status().code(); }
};

TEST_F(ForeignFlush, IsReadInAnyOrderOfParameters) {
  ASSERT_EQ(code(), StatusCode::kOk);
  std::swap(params_[0], params_[1]);
  const auto file = open_bytes(make());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().at("writer"), "somebody");
  EXPECT_EQ(file->buckets().front().entries[0].tensor, 0U);
}
TEST_F(ForeignFlush, CompressionIsRecognizedByTheFirstBytes) {
  compress_ = true;
  EXPECT_EQ(code(), StatusCode::kOk);
  metadata_["encoding"] = "deltas_zstd";
  EXPECT_EQ(code(), StatusCode::kOk);
  compress_ = false;
  EXPECT_EQ(code(), StatusCode::kOk);
}
TEST_F(ForeignFlush, ParametersWithoutChangesAreLeftOut) {
  Json empty = param("c", {20}, 8, 8, 2, 3, 3);
  empty["dtype"] = "float16";
  params_.push_back(empty);
  EXPECT_EQ(code(), StatusCode::kCorrupt);  // of another dtype than the values
  params_[2] = params_[1];
  params_[1] = param("b", {200'000}, 4, 4, 4, 2, 2);
  params_.erase(2);
  params_[0] = param("a", {4, 5}, 0, 8, 4, 0, 2);
  values_.resize(4);
  const auto file = open_bytes(make());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->buckets().front().entries.size(), 1U);
}
TEST_F(ForeignFlush, EveryKeyOfTheFormatIsRequired) {
  for (const char* key : {"encoding", "current_version", "checksum", "params"}) {
    const Json before = metadata_;
    metadata_[key] = nullptr;
    EXPECT_EQ(code(), StatusCode::kCorrupt) << key;
    metadata_ = before;
  }
  for (const char* key :
       {"name", "dtype", "shape", "pos_start", "pos_end", "pos_width", "val_start", "val_end"}) {
    const Json before = params_;
    params_[0].erase(key);
    EXPECT_EQ(code(), StatusCode::kCorrupt) << key;
    params_[0][key] = Json::object();
    EXPECT_EQ(code(), StatusCode::kCorrupt) << key;
    params_ = before;
  }
}
TEST_F(ForeignFlush, AnotherVersionChecksumOrEncodingIsRefused) {
  const Json before = metadata_;
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"current_version", "4"},
                                                        {"current_version", "3x"},
                                                        {"current_version", ""},
                                                        {"current_version", "-3"},
                                                        {"checksum", "1"},
                                                        {"checksum", ""},
                                                        {"encoding", "xor"},
                                                        {"encoding", "zip"},
                                                        {"encoding", "indices"},
                                                        {"params", "{}"},
                                                        {"params", "[1]"},
                                                        {"params", "["}}) {
    metadata_ = before;
    metadata_[key] = value;
    EXPECT_EQ(code(), StatusCode::kCorrupt) << key << " = " << value;
  }
}
TEST_F(ForeignFlush, AnotherLayoutIsRefused) {
  const Json before = params_;
  params_[0]["name"] = "x";
  EXPECT_EQ(code(), StatusCode::kWrongLayout);
  params_ = before;
  params_[0]["dtype"] = "float16";
  EXPECT_EQ(code(), StatusCode::kWrongLayout);
  params_[0]["dtype"] = "nonsense";
  EXPECT_EQ(code(), StatusCode::kWrongLayout);
  params_ = before;
  params_[0]["shape"] = {5, 4};
  EXPECT_EQ(code(), StatusCode::kWrongLayout);
}
TEST_F(ForeignFlush, RangesThatDoNotTileAreRefused) {
  const Json before = params_;
  const auto refuses = [&](std::size_t which, const char* key, Json value) {
    params_ = before;
    params_[which][key] = std::move(value);
    EXPECT_EQ(code(), StatusCode::kCorrupt) << which << " " << key;
  };
  refuses(0, "pos_start", 2);
  refuses(0, "pos_end", 8);
  refuses(1, "pos_end", std::uint64_t{1} << 63);
  refuses(1, "pos_end", -1);
  refuses(0, "pos_width", 4);
  refuses(0, "pos_width", 0);
  refuses(0, "pos_width", 3);
  refuses(0, "pos_width", std::uint64_t{1} << 32 | 2);
  refuses(1, "val_end", 4);
  refuses(1, "val_start", 1);
  refuses(1, "val_end", 1e300);
  params_ = before;
  params_[1]["name"] = "a";
  params_[1]["shape"] = {4, 5};
  EXPECT_EQ(code(), StatusCode::kCorrupt);  // twice
  params_ = before;
  params_.erase(1);
  EXPECT_EQ(code(), StatusCode::kCorrupt);  // the rest belongs to nobody
}
TEST_F(ForeignFlush, ValuesOfAnotherTypeAreRefused) {
  values_dtype_ = "F16";
  EXPECT_EQ(code(), StatusCode::kCorrupt);
}
TEST_F(ForeignFlush, TruncationsAreRefusedPlainAndCompressed) {
  for (const bool compressed : {false, true}) {
    compress_ = compressed;
    const Bytes bytes = make();
    for (std::size_t size = 0; size < bytes.size(); size += 3) {
      ASSERT_EQ(
          open_bytes(Bytes(bytes.begin(), bytes.begin() + std::ptrdiff_t(size))).status().code(),
          StatusCode::kCorrupt)
          << size;
    }
  }
  EXPECT_EQ(posix_file_system().list(dir_.path())->size(), 1U) << "a spool file was left behind";
}
TEST_F(ForeignFlush, ContentPastWhatTheLayoutAllowsIsNotSpooled) {
  const Bytes frame = zstd_compress(Bytes(200'000'000)).value();
  const Status status = open_bytes(frame).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("more than a flush file"), std::string_view::npos);
}
TEST_F(ForeignFlush, MissingTensorsAreNamed) {
  const std::string text = R"({"__values__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  const Bytes bytes = with_length(text);
  const Status status = open_bytes(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("__positions__"), std::string_view::npos);
}

}  // namespace
}  // namespace driftless
