// SPDX-License-Identifier: Apache-2.0
// RunSource: the versions of a run, to be read one after the other: from a road (a directory with
// run.json, an object store), or from a directory of versions without an announcement (`driftless
// diff`, slime, miles). It only reads and registers nowhere. One thread at a time.
#pragma once

#include "collectives/road.h"
#include "formats/run_info.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// A version as described by its own files.
struct FoundVersion {
  PublicationId id;
  std::uint64_t base_version = 0;
  DirectoryLayout layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;
  std::optional<Manifest> manifest;  // nothing: not written by Driftless

  [[nodiscard]] bool full() const { return encoding == Encoding::kFull; }
};

class RunSource {
 public:
  virtual ~RunSource() = default;
  // The announcement; nothing if there is none.
  [[nodiscard]] virtual const std::optional<RunInfo>& run() const = 0;
  // All publications, also incomplete ones; ascending, a version before its anchor.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> list() = 0;
  [[nodiscard]] virtual Result<FoundVersion> describe(const PublicationId& id) = 0;
  // Opens the version's payload; every part has the hash named in the manifest. The layout outlives
  // it.
  [[nodiscard]] virtual Result<VersionSource> open(const FoundVersion& version,
                                                   const WeightLayout& layout) = 0;
};

// Every call on the road ends after `patience`. `directory`: the place of its files, so that
// incomplete versions are listed, too; empty: the files are not on this host.
[[nodiscard]] Result<std::unique_ptr<RunSource>> open_road_source(
    std::unique_ptr<ReceiveRoad> road, const std::string& directory,
    std::chrono::milliseconds patience, unsigned threads);
[[nodiscard]] std::unique_ptr<RunSource> open_directory_source(FileSystem& fs,
                                                               const std::string& directory,
                                                               unsigned threads);

}  // namespace driftless
