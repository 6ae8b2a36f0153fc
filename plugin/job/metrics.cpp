// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace driftless {
namespace {

void put(nlohmann::ordered_json& json, const char* key, const std::optional<double>& value) {
  if (value) json[key] = *value;
}

}  // namespace

double monotonic_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

MetricsLine metrics_of(const PublishReport& report, unsigned rank) {
  MetricsLine line;
  line.role = "trainer";
  line.rank = rank;
  line.monotonic_ms = monotonic_ms();
  line.version = report.version;
  line.base_version = report.base_version;
  line.encoding = info(report.encoding).name;
  line.anchor = report.anchor;
  line.digest = to_hex(report.digest);
  line.changed_units = report.changed_units;
  line.density = report.total_units == 0 ? 0.0
                                         : static_cast<double>(report.changed_units) /
                                               static_cast<double>(report.total_units);
  line.full_bytes = report.full_bytes;
  line.delta_bytes = report.delta_bytes;
  line.wire_bytes = report.wire_bytes;
  line.process_ms = report.process_ms;
  line.manifest_publish_ms = report.manifest_publish_ms;
  line.total_ms = report.total_ms;
  return line;
}

MetricsLine metrics_of(const UpdateReport& report, unsigned rank) {
  MetricsLine line;
  line.role = "rollout";
  line.rank = rank;
  line.monotonic_ms = monotonic_ms();
  line.version = report.version;
  line.base_version = report.from_version;
  line.versions = report.versions;
  line.anchor = report.anchor;
  line.digest = to_hex(report.digest);
  line.changed_units = report.changed_units;
  line.full_bytes = report.full_bytes;
  line.delta_bytes = report.delta_bytes;
  line.wire_bytes = report.wire_bytes;
  line.fetch_ms = report.fetch_ms;
  line.stage_ms = report.stage_ms;
  line.pause_ms = report.pause_ms;
  line.apply_ms = report.apply_ms;
  line.resume_ms = report.resume_ms;
  return line;
}

std::string metrics_json(const MetricsLine& line) {
  nlohmann::ordered_json json;
  json["role"] = line.role;
  json["rank"] = line.rank;
  json["monotonic_ms"] = line.monotonic_ms;
  json["version"] = line.version;
  json["base_version"] = line.base_version;
  if (!line.encoding.empty()) json["encoding"] = line.encoding;
  json["versions"] = line.versions;
  json["anchor"] = line.anchor;
  json["digest"] = line.digest;
  json["changed_units"] = line.changed_units;
  put(json, "density", line.density);
  json["full_bytes"] = line.full_bytes;
  json["delta_bytes"] = line.delta_bytes;
  json["wire_bytes"] = line.wire_bytes;
  put(json, "process_ms", line.process_ms);
  put(json, "manifest_publish_ms", line.manifest_publish_ms);
  put(json, "total_ms", line.total_ms);
  put(json, "fetch_ms", line.fetch_ms);
  put(json, "stage_ms", line.stage_ms);
  put(json, "pause_ms", line.pause_ms);
  put(json, "apply_ms", line.apply_ms);
  put(json, "resume_ms", line.resume_ms);
  if (!line.engine.empty()) json["engine"] = line.engine;
  if (line.plain_bytes) json["plain_bytes"] = *line.plain_bytes;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<MetricsWriter> MetricsWriter::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return errno_status(errno, concat("metrics.file: ", path));
  return MetricsWriter(path, fd);
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      dropped_(other.dropped_),
      torn_(other.torn_) {}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status MetricsWriter::write(const MetricsLine& line) {
  const std::string text = concat(torn_ ? "\n" : "", metrics_json(line), "\n");
  ssize_t written = -1;
  do {
    written = ::write(fd_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  const int reason = written < 0 ? errno : ENOSPC;
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    return {};
  }
  torn_ = torn_ || written > 0;
  if (++dropped_ > 1) return {};
  return errno_status(reason, concat("metrics.file: ", path_, ": lines are lost from version ",
                                     line.version, " on; the job goes on"));
}

}  // namespace driftless
