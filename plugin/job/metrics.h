// SPDX-License-Identifier: Apache-2.0
// What every process writes to metrics.file: a JSON object on a line of its own per version.
//
// Training never stops for them: a line that cannot be written is dropped, and the first time this
// happens is told. One thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/descriptor.h"
#include "formats/records.h"
#include "plugin/observe/record_sink.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"

namespace driftless {

// To be called when it is done: the record holds the time.
[[nodiscard]] VersionRecord record_of(const PublishReport& report, unsigned rank);
[[nodiscard]] VersionRecord record_of(const UpdateReport& report, unsigned rank);
// One line, without its end, whatever bytes the texts in it hold.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& json);

class MetricsWriter final : public RecordSink {
 public:
  // Appends to `path` ("{role}" and "{rank}" in it filled in), which is made if it is missing;
  // several processes may share it, on a local file system: a line is one write. Null if the path
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
  MetricsWriter(std::string path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  Descriptor file_;
  std::uint64_t dropped_ = 0;
  Status trouble_;     // of write(), until somebody takes it
  bool torn_ = false;  // the last line was cut: the next begins on a new one
};

}  // namespace driftless
