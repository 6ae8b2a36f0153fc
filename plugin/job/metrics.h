// SPDX-License-Identifier: Apache-2.0
// Metrics: one JSON line per version and process, appended to a file.
//
// Training never stops for them: a line that cannot be written is dropped, and the first time this
// happens is told. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"

namespace driftless {

// What is not known stays out of the line.
struct MetricsLine {
  std::string role;  // "trainer", "rollout", "agent"
  unsigned rank = 0;
  double monotonic_ms = 0;  // when it was done, by this machine's monotonic clock
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  std::string encoding;        // a trainer's
  std::uint64_t versions = 1;  // folded into one commit: a rollout's
  bool anchor = false;         // published, or taken from one
  std::string digest;
  std::uint64_t changed_units = 0;
  std::optional<double> density;
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  std::optional<double> process_ms, manifest_publish_ms, total_ms;          // a trainer's
  std::optional<double> fetch_ms, stage_ms, pause_ms, apply_ms, resume_ms;  // a rollout's
  std::string engine;                        // an agent's: of this engine's update
  std::optional<std::uint64_t> plain_bytes;  // and what it handed to the workers
};
// Of the machine's monotonic clock, now.
[[nodiscard]] double monotonic_ms();
// To be called when it is done.
[[nodiscard]] MetricsLine metrics_of(const PublishReport& report, unsigned rank);
[[nodiscard]] MetricsLine metrics_of(const UpdateReport& report, unsigned rank);
// Without the end of the line.
[[nodiscard]] std::string metrics_json(const MetricsLine& line);

class MetricsWriter {
 public:
  // Appends to `path`, which is made where it is missing; several processes may share it, on a
  // local file system: a line is one write.
  [[nodiscard]] static Result<MetricsWriter> open(const std::string& path);
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&&) = delete;
  ~MetricsWriter();

  // The first failure is returned, later ones are only counted.
  [[nodiscard]] Status write(const MetricsLine& line);
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  MetricsWriter(std::string path, int descriptor) : path_(std::move(path)), fd_(descriptor) {}
  std::string path_;
  int fd_;  // -1 once moved from
  std::uint64_t dropped_ = 0;
  bool torn_ = false;  // the last line was cut: the next begins on a new one
};

}  // namespace driftless
