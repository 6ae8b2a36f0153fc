// SPDX-License-Identifier: Apache-2.0
// A foreign directory is replaced while it is read: the result is one of its versions.
#include "plugin/interchange/foreign_directory.h"

#include <gtest/gtest.h>

#include "core/deadline.h"
#include "formats/manifest.h"
#include "support/stalling_file_system.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

// Version 1 as a follower reads it; `plan` sets what happens meanwhile.
Digest followed(StallingFileSystem& fs, const TempDir& dir) {
  SharedFsOptions options;
  options.dir = dir.file("road");
  options.foreign_base = dir.file("base");
  options.poll_first = options.poll_longest = std::chrono::milliseconds(1);
  auto road = make_foreign_receiver(fs, options, 1);
  EXPECT_TRUE(road.ok()) << road.status().to_string();
  const Deadline soon = Deadline::after(std::chrono::seconds(20));
  const Status waited = (*road)->wait_beyond(0, soon);
  EXPECT_TRUE(waited.ok()) << waited.to_string();
  const auto text = (*road)->fetch_manifest({1, PublicationKind::kVersion}, soon);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return parse_manifest(*text, "test")->digest;
}

TEST(ForeignDirectoryTest, AVersionThatIsReplacedWhileItIsReadIsOneOrTheOther) {
  const TempDir dir(TempDir::Where::kMemory);
  const Weights base = random_weights(1, 2);
  write_checkpoint(dir.file("base"), base);
  const std::string names[] = {dir.file("one"), dir.file("two")};
  for (std::uint64_t i = 0; i < 2; ++i) {
    write_checkpoint(names[i], changed_weights(base, 2 + i, 0.2, "nothing"), 2);
  }
  const std::string shown = dir.file("road/weight_v000001");
  std::filesystem::create_directories(dir.file("road"));
  StallingFileSystem fs;
  const auto show = [&](const std::string& which) {
    std::filesystem::remove_all(shown);
    copy_directory(which, shown);
  };
  Digest digests[2];
  std::uint64_t calls = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    show(names[i]);
    fs.plan(~std::uint64_t{0}, [] {});
    digests[i] = followed(fs, dir);
    calls = fs.calls();
  }
  ASSERT_NE(digests[0], digests[1]);
  ASSERT_GT(calls, 10U);
  std::size_t seen[2] = {0, 0};
  for (std::uint64_t at = 0; at <= calls; ++at) {  // at the last value nothing happens
    show(names[0]);
    fs.plan(at, [&] { show(names[1]); });
    const Digest found = followed(fs, dir);
    ASSERT_TRUE(found == digests[0] || found == digests[1]) << "replaced before call " << at;
    ++seen[found == digests[0] ? 0 : 1];
  }
  EXPECT_GT(seen[0], 0U);
  EXPECT_GT(seen[1], 0U);
}

}  // namespace
}  // namespace driftless::testing
