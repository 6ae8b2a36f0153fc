// SPDX-License-Identifier: Apache-2.0
// StatusReader: looks at a source of `driftless status`: a road's directory or bucket, metrics
// files, the endpoint of a publisher or an agent. It only reads: it takes no lock, writes nothing
// and reports nothing to the road. What it has read once it remembers for the next look. One
// thread.
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
  // kNotFound if there is nothing that could be a run.
  [[nodiscard]] virtual Result<Sighting> look(const Deadline& deadline) = 0;
};

struct StatusOptions {
  std::vector<std::string> sources;  // several: metrics files
  std::vector<std::string> set;      // "road.object_store.region=...": of a bucket
  std::string token_file;            // of an endpoint
  std::size_t most_versions = 10;    // of a road whose manifests are read
};
inline constexpr std::size_t kAllVersions = 10'000;

// The reader that the source asks for: http(s)://host:port, also with /status.json, is an endpoint;
// s3:// and http(s):// with another path are buckets; a directory is a road's, a file has metrics.
// kNotFound; kInvalidArgument for a source that cannot be one.
[[nodiscard]] Result<std::unique_ptr<StatusReader>> open_status(const StatusOptions& options);

// `kind`: "shared_fs" or "object_store"; `location`: its directory or URL.
[[nodiscard]] Result<std::unique_ptr<StatusReader>> make_road_reader(
    std::string_view kind, const std::string& location, std::span<const std::string> set,
    std::size_t most_versions);
[[nodiscard]] std::unique_ptr<StatusReader> make_metrics_reader(std::vector<std::string> paths);
[[nodiscard]] std::unique_ptr<StatusReader> make_endpoint_reader(std::string url, std::string token,
                                                                 HttpFunction http);

}  // namespace driftless
