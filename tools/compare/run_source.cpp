// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/run_source.h"

#include <set>

#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

class RoadSource final : public RunSource {
 public:
  RoadSource(std::unique_ptr<ReceiveRoad> road, RunInfo run, std::string directory,
             std::chrono::milliseconds patience, unsigned threads)
      : road_(std::move(road)),
        run_(std::move(run)),
        directory_(std::move(directory)),
        patience_(patience),
        threads_(threads) {}

  const std::optional<RunInfo>& run() const override { return run_; }

  Result<std::vector<PublicationId>> list() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> whole,
                               road_->list(Deadline::after(patience_)));
    std::set<PublicationId> all(whole.begin(), whole.end());
    if (!directory_.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> versions,
                                 list_versions(posix_file_system(), directory_));
      for (const std::uint64_t version : versions) all.insert({version});
    }
    return std::vector<PublicationId>(all.begin(), all.end());
  }

  Result<FoundVersion> describe(const PublicationId& id) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                               road_->fetch_manifest(id, Deadline::after(patience_)));
    DRIFTLESS_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, to_string(id)));
    if (manifest.id != VersionId{run_->run, id.version}) {
      return error(StatusCode::kWrongRun, to_string(id), ": its manifest is of version ",
                   manifest.id.version, " of run ", to_hex(manifest.id.run), ", expected run ",
                   to_hex(run_->run));
    }
    return FoundVersion{id, manifest.base_version, manifest.directory_layout, manifest.encoding,
                        std::move(manifest)};
  }

  Result<VersionSource> open(const FoundVersion& version, const WeightLayout& layout) override {
    const Manifest& manifest = *version.manifest;
    DRIFTLESS_RETURN_IF_ERROR(check_sizes(manifest, layout, to_string(version.id)));
    FetchedVersion fetched{manifest, to_string(version.id), {}};
    const Deadline deadline = Deadline::after(patience_);
    for (const ManifestFile& file : manifest.files) {
      DRIFTLESS_ASSIGN_OR_RETURN(MappedFile part,
                                 road_->fetch_part(version.id, receipt_of(file), deadline));
      DRIFTLESS_RETURN_IF_ERROR(check_part(part, file, deadline));
      fetched.parts.push_back(std::move(part));
    }
    std::vector<FetchedVersion> chain;
    chain.push_back(std::move(fetched));
    DRIFTLESS_ASSIGN_OR_RETURN(
        std::vector<VersionSource> opened,
        open_chain(posix_file_system(), std::move(chain), layout, "", threads_));
    return std::move(opened.front());
  }

 private:
  std::unique_ptr<ReceiveRoad> road_;
  std::optional<RunInfo> run_;
  std::string directory_;
  std::chrono::milliseconds patience_;
  unsigned threads_;
};

class DirectorySource final : public RunSource {
 public:
  DirectorySource(FileSystem& fs, std::string directory, unsigned threads)
      : fs_(fs), directory_(std::move(directory)), threads_(threads) {}

  const std::optional<RunInfo>& run() const override { return run_; }

  Result<std::vector<PublicationId>> list() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> versions,
                               list_versions(fs_, directory_));
    std::vector<PublicationId> all;
    for (const std::uint64_t version : versions) all.push_back({version});
    return all;
  }

  Result<FoundVersion> describe(const PublicationId& id) override {
    DRIFTLESS_ASSIGN_OR_RETURN(VersionDirectory found, open_version(fs_, directory_, id.version));
    return FoundVersion{id, found.base_version, found.directory_layout, found.encoding,
                        std::move(found.manifest)};
  }

  Result<VersionSource> open(const FoundVersion& version, const WeightLayout& layout) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory found,
                               open_version(fs_, directory_, version.id.version));
    DRIFTLESS_RETURN_IF_ERROR(check_has_files(found));
    DRIFTLESS_RETURN_IF_ERROR(check_file_hashes(fs_, found, threads_));
    return VersionSource::open(fs_, found, layout, "");
  }

 private:
  FileSystem& fs_;
  std::string directory_;
  unsigned threads_;
  std::optional<RunInfo> run_;
};

}  // namespace

Result<std::unique_ptr<RunSource>> open_road_source(std::unique_ptr<ReceiveRoad> road,
                                                    const std::string& directory,
                                                    std::chrono::milliseconds patience,
                                                    unsigned threads) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, road->run_info(Deadline::after(patience)));
  DRIFTLESS_ASSIGN_OR_RETURN(RunInfo run, parse_run_info(text, kRunInfoName));
  return std::unique_ptr<RunSource>(
      std::make_unique<RoadSource>(std::move(road), std::move(run), directory, patience, threads));
}

std::unique_ptr<RunSource> open_directory_source(FileSystem& fs, const std::string& directory,
                                                 unsigned threads) {
  return std::make_unique<DirectorySource>(fs, directory, threads);
}

}  // namespace driftless
