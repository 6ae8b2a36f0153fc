// SPDX-License-Identifier: Apache-2.0
// StatusReader: reads a source of `driftless status`: a road's directory or bucket, metrics files,
// or the endpoint of a publisher or an agent. It only reads: it takes no lock, writes nothing and
// reports nothing to the road. It remembers what it has read for the next look. One thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "plugin/engines/engine_http.h"
#include "tools/status/sighting.h"

namespace driftless {

class StatusReader {
 public:
  virtual ~StatusReader() = default;
  // kNotFound if the source contains no run.
  [[nodiscard]] virtual Result<Sighting> look(const Deadline& deadline) = 0;
};

struct StatusOptions {
  std::vector<std::string> sources;  // more than one: metrics files
  std::vector<std::string> set;      // settings for a bucket: "road.object_store.region=..."
  std::string token_file;            // for an endpoint
  std::size_t most_versions = 10;    // limit for a road whose manifests are read
};
inline constexpr std::size_t kAllVersions = 10'000;

// Opens the reader for a source: http(s)://host:port, also with /status.json, is an endpoint; s3://
// and http(s):// with another path are buckets; a directory belongs to a road, and a file contains
// metrics. kNotFound; kInvalidArgument for anything else.
[[nodiscard]] Result<std::unique_ptr<StatusReader>> open_status(const StatusOptions& options);

// `location`: the directory of a road's files if `directory` is true, otherwise a store's URL.
[[nodiscard]] Result<std::unique_ptr<StatusReader>> make_road_reader(
    bool directory, const std::string& location, std::span<const std::string> set,
    std::size_t most_versions);
[[nodiscard]] std::unique_ptr<StatusReader> make_metrics_reader(std::vector<std::string> paths);
[[nodiscard]] std::unique_ptr<StatusReader> make_endpoint_reader(std::string url, std::string token,
                                                                 HttpFunction http);

}  // namespace driftless
