// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/receiver_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "support/temp_dir.h"

namespace driftless::shared_fs {
namespace {

using std::chrono::milliseconds;

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ReceiverFileTest, ReadsWhatItWrites) {
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes += static_cast<char>(i);
  const ReceiverReport report{"h\xc3\xb6st-\xff", 123, all_bytes};
  const std::string text = receiver_to_json(report, ~std::uint64_t{0});
  const auto back = receiver_from_json(text, report.id);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->id, report.id);
  EXPECT_EQ(back->version, 123U);
  EXPECT_EQ(back->proof, all_bytes);
  EXPECT_NE(text, receiver_to_json(report, 0)) << "every report changes the content";
}

TEST(ReceiverFileTest, RefusesWhatIsNotOne) {
  for (const std::string text :
       {"", "{", "[]", "7", "{}", R"({"id":"a","version":1})",
        R"({"id":"b","version":1,"proof":""})", R"({"id":"a","version":-1,"proof":""})",
        R"({"id":"a","version":1.5,"proof":""})", R"({"id":"a","version":"1","proof":""})",
        R"({"id":7,"version":1,"proof":""})",
        R"({"id":"a","version":18446744073709551615,"proof":""})",
        R"({"id":"a","version":1,"proof":"\u0100"})", R"({"id":"a","version":1,"proof":null})"}) {
    EXPECT_FALSE(receiver_from_json(text, "a").ok()) << text;
  }
  EXPECT_TRUE(receiver_from_json(R"({"id":"a","version":1,"proof":"","more":[]})", "a").ok());
}

TEST(ReceiverWatchTest, ADamagedFileCountsUntilPatienceEnds) {
  const testing::TempDir dir;
  ReceiverWatch watch(posix_file_system(), dir.path(), milliseconds(150));
  write(dir.file("good.json"), receiver_to_json({"good", 4, "p"}, 1));
  write(dir.file("bad.json"), "{\"id\":\"ba");
  write(dir.file("good.json.tmp"), "half of a replac");
  write(dir.file("huge.json"), std::string(kMaxReceiverFileBytes + 1, ' '));
  std::filesystem::create_directory(dir.file("directory.json"));
  const auto alive = watch.look();
  ASSERT_TRUE(alive.ok());
  ASSERT_EQ(alive->size(), 4U);
  for (const auto& receiver : *alive) {
    EXPECT_EQ(receiver.readable, receiver.report.id == "good") << receiver.report.id;
  }
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_TRUE(watch.look()->empty());
  write(dir.file("bad.json"), "other damage");
  const auto again = watch.look();
  ASSERT_EQ(again->size(), 1U) << "it changed, so somebody is there";
  EXPECT_EQ(again->front().report.id, "bad");
}

TEST(ReceiverWatchTest, ANewLeaderCountsFromItsFirstLook) {
  const testing::TempDir dir;
  write(dir.file("old.json"), receiver_to_json({"old", 4, "p"}, 1));
  std::this_thread::sleep_for(milliseconds(60));
  ReceiverWatch watch(posix_file_system(), dir.path(), milliseconds(50));
  EXPECT_EQ(watch.look()->size(), 1U) << "how old the file is, is not known";
}

TEST(ReceiverWatchTest, NoDirectoryMeansNoReceivers) {
  const testing::TempDir dir;
  ReceiverWatch watch(posix_file_system(), dir.file("missing"), milliseconds(50));
  const auto alive = watch.look();
  ASSERT_TRUE(alive.ok());
  EXPECT_TRUE(alive->empty());
}

}  // namespace
}  // namespace driftless::shared_fs
