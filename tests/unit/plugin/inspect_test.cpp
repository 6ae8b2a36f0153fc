// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/inspect.h"

#include <gtest/gtest.h>

#include "formats/frame.h"
#include "formats/run_info.h"
#include "formats/version_dir.h"
#include "plugin/targets/version_source.h"
#include "support/delta_model.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::layout_of;
using testing::spec;

class InspectTest : public ::testing::Test {
 protected:
  // A version of one frame, with layout frames or hdf5 (nothing reads the container).
  void publish(std::uint64_t version, DirectoryLayout layout) {
    auto writer = VersionWriter::create(fs_, dir_.path(), version);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    const std::string name =
        layout == DirectoryLayout::kHdf5 ? std::string(kHdf5Name) : frame_file_name(0, 0);
    ASSERT_TRUE(write_text(fs_, writer->file_path(name), "part").ok());
    Manifest manifest;
    manifest.id = {{1, 1}, version};
    manifest.base_version = version - 1;
    manifest.directory_layout = layout;
    manifest.encoding = Encoding::kDeltas;
    manifest.ranks = 2;
    ASSERT_TRUE(writer->publish(manifest).ok());
  }
  [[nodiscard]] Inspection inspect(const std::string& path) {
    Result<Inspection> result = inspect_path(fs_, path);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? std::move(*result) : Inspection();
  }
  static std::string fact(const Inspection& inspection, std::string_view name) {
    for (const auto& [key, value] : inspection.facts) {
      if (key == name) return value;
    }
    return "none";
  }

  testing::TempDir dir_;
  FileSystem& fs_ = posix_file_system();
};

TEST_F(InspectTest, ShowsVersionsOfFramesAndHdf5) {
  publish(1, DirectoryLayout::kFrames);
  publish(2, DirectoryLayout::kHdf5);
  const Inspection frames = inspect(dir_.file(version_directory_name(1)));
  EXPECT_EQ(frames.kind, "version");
  EXPECT_EQ(fact(frames, "layout"), "frames");
  EXPECT_EQ(fact(frames, "ranks"), "2");
  EXPECT_EQ(frames.columns.front(), "file");
  const Inspection hdf5 = inspect(dir_.file(version_directory_name(2)));
  EXPECT_EQ(fact(hdf5, "layout"), "hdf5");
  EXPECT_EQ(hdf5.columns.front(), "dataset");
  const Inspection both = inspect(dir_.path());
  EXPECT_EQ(both.kind, "versions");
  ASSERT_EQ(both.rows.size(), 2U);
  EXPECT_EQ(both.rows[1][2], "hdf5");
  EXPECT_EQ(both.rows[1].back(), to_hex(Hash128{1, 1}));
}

TEST_F(InspectTest, PatchingFromHdf5IsRefusedAndNamesTheReader) {
  publish(1, DirectoryLayout::kHdf5);
  const auto version = open_version(fs_, dir_.path(), 1);
  ASSERT_TRUE(version.ok()) << version.status().to_string();
  const WeightLayout layout = layout_of({spec("a", DType::kU8, {4})});
  const auto source = VersionSource::open(fs_, *version, layout, dir_.path());
  EXPECT_EQ(source.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(source.status().message().find("driftless rollout"), std::string_view::npos);
}

TEST_F(InspectTest, ShowsAnAnnouncementAndAFullFrame) {
  RunInfo run;
  run.run = {1, 2};
  run.layout = layout_of({spec("a", DType::kBF16, {4})});
  ASSERT_TRUE(write_text(fs_, dir_.file("run.json"), run_info_to_json(run)).ok());
  const Inspection shown = inspect(dir_.file("run.json"));
  EXPECT_EQ(shown.kind, "run");
  EXPECT_EQ(fact(shown, "bytes"), "8");
  ASSERT_EQ(shown.rows.size(), 1U);
  EXPECT_EQ(shown.rows[0][0], "a");

  const std::vector<std::byte> bytes(8);
  const std::vector<DenseRun> runs{{0, 0, bytes}};
  FrameContext context;
  context.layout = run.layout.signature();
  context.encoding = Encoding::kFull;
  std::vector<std::byte> frame;
  ASSERT_TRUE(encode_full_frame(context, run.layout, DType::kBF16, runs, frame).ok());
  const std::string text(reinterpret_cast<const char*>(frame.data()), frame.size());
  ASSERT_TRUE(write_text(fs_, dir_.file("f.frame"), text).ok());
  EXPECT_EQ(fact(inspect(dir_.file("f.frame")), "encoding"), "full");
}

}  // namespace
}  // namespace driftless
