// SPDX-License-Identifier: Apache-2.0
// RunSource: the versions of a run, to be read one after the other: from a road (a directory with
// run.json, an object store), or from a directory of versions that has no announcement (`driftless
// diff`, slime, miles). Reads only; registers nowhere. One thread at a time.
#pragma once

#include "collectives/road.h"
#include "formats/run_info.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// What a version says about itself.
struct FoundVersion {
  PublicationId id;
  std::uint64_t base_version = 0;
  DirectoryLayout layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;
  std::optional<Manifest> manifest;  // nothing: others wrote it

  [[nodiscard]] bool full() const { return encoding == Encoding::kFull; }
};

class RunSource {
 public:
  virtual ~RunSource() = default;
  // The announcement; nothing: there is none.
  [[nodiscard]] virtual const std::optional<RunInfo>& run() const = 0;
  // All that is there, also what is not whole; ascending, a version before its anchor.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> list() = 0;
  [[nodiscard]] virtual Result<FoundVersion> describe(const PublicationId& id) = 0;
  // Its payload; every part has the hash that the manifest says. The layout outlives it.
  [[nodiscard]] virtual Result<VersionSource> open(const FoundVersion& version,
                                                   const WeightLayout& layout) = 0;
};

// Every call on the road ends after `patience`. `directory`: where its files lie, so that versions
// that are not whole are listed, too; empty: nowhere on this host.
[[nodiscard]] Result<std::unique_ptr<RunSource>> open_road_source(
    std::unique_ptr<ReceiveRoad> road, const std::string& directory,
    std::chrono::milliseconds patience, unsigned threads);
[[nodiscard]] std::unique_ptr<RunSource> open_directory_source(FileSystem& fs,
                                                               const std::string& directory,
                                                               unsigned threads);

}  // namespace driftless
