// SPDX-License-Identifier: Apache-2.0
// The metrics.file of a process: one JSON object per version, each on its own line.
//
// Training never waits for metrics: a line that cannot be written is dropped, and the first loss is
// reported. One thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "formats/records.h"
#include "plugin/observe/line_file.h"
#include "plugin/observe/span_writer.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"

namespace driftless {

// Call it when the publication has ended: the record contains the time.
[[nodiscard]] VersionRecord record_of(const PublishReport& report, unsigned rank);
[[nodiscard]] VersionRecord record_of(const UpdateReport& report, unsigned rank);
// One line without its end; it escapes whatever bytes the texts contain.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& json);

// Opens the sink of monitor.spans_file, with "{role}" and "{rank}" replaced; creates the file if it
// is missing. Null if the path is empty.
[[nodiscard]] Result<std::unique_ptr<RecordSink>> open_spans(const std::string& path,
                                                             std::string_view role, unsigned rank);

class MetricsWriter final : public RecordSink {
 public:
  // Opens `path`, with "{role}" and "{rank}" replaced; creates the file if it is missing. Several
  // processes may share it on a local file system, because each line is one write. Null if the path
  // is empty.
  [[nodiscard]] static Result<std::unique_ptr<MetricsWriter>> open(const std::string& path,
                                                                   std::string_view role,
                                                                   unsigned rank);
  // The first failure is returned, later ones are only counted.
  [[nodiscard]] Status write(const nlohmann::ordered_json& line);

  void add(const VersionRecord& record) override;
  void add(const EngineRecord& record) override;
  void replace(std::span<const RolloutRecord> /*rollouts*/) override {}
  void failed(const Status& /*status*/) override {}
  void add(const EndRecord& /*record*/) override {}
  [[nodiscard]] Status take_trouble() override { return std::exchange(trouble_, {}); }

 private:
  explicit MetricsWriter(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
  std::unique_ptr<LineFile> file_;
  Status trouble_;  // of write(), until take_trouble()
};

}  // namespace driftless
