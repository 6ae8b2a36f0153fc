// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/metrics.h"

#include <nlohmann/json.hpp>

#include "plugin/job/job_process.h"

namespace driftless {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename Report>
VersionRecord common(const Report& report, std::string_view role, unsigned rank) {
  VersionRecord record;
  record.origin = record_origin(role, rank);
  record.run = report.run;
  record.version = report.version;
  record.anchor = report.anchor;
  record.digest = report.digest;
  record.changed_units = report.changed_units;
  record.full_bytes = report.full_bytes;
  record.delta_bytes = report.delta_bytes;
  record.wire_bytes = report.wire_bytes;
  return record;
}

}  // namespace

VersionRecord record_of(const PublishReport& report, unsigned rank) {
  VersionRecord record = common(report, "trainer", rank);
  record.base_version = report.base_version;
  record.most_changed = report.most_changed;
  const double density = report.total_units == 0 ? 0.0
                                                 : static_cast<double>(report.changed_units) /
                                                       static_cast<double>(report.total_units);
  const StageTimes& stages = report.stages;
  record.published = {
      report.encoding, density,           report.process_ms, report.manifest_publish_ms,
      report.total_ms, stages.compare_ms, stages.encode_ms,  stages.send_ms,
      report.seal_ms};
  const LiveCosts& live = report.live;
  if (live.step_ms > 0) {  // a publisher without a snapshot
    record.captured = {live.captured_bytes, live.resent_tensors, live.capture_ms, live.sweep_ms,
                       live.step_ms};
  }
  return record;
}

VersionRecord record_of(const UpdateReport& report, unsigned rank) {
  VersionRecord record = common(report, "rollout", rank);
  if (report.done) record.origin = record_origin("rollout", rank, *report.done);
  record.base_version = report.from_version;
  record.versions = report.versions;
  record.received = {report.needed_bytes,
                     report.fetch_ms,
                     {report.stage_ms, report.pause_ms, report.apply_ms, report.resume_ms},
                     report.carrier};
  return record;
}

std::string json_line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<std::unique_ptr<RecordSink>> open_spans(const std::string& path, std::string_view role,
                                               unsigned rank) {
  if (path.empty()) return std::unique_ptr<RecordSink>();
  return open_span_writer(filled_in(path, role, rank));
}

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::open(const std::string& path,
                                                           std::string_view role, unsigned rank) {
  if (path.empty()) return std::unique_ptr<MetricsWriter>();
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file,
                             LineFile::open("metrics.file", filled_in(path, role, rank)));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(file)));
}

void MetricsWriter::add(const VersionRecord& record) {
  const Status written = write(to_json(record));
  if (!written.ok()) trouble_ = written;
}
void MetricsWriter::add(const EngineRecord& record) {
  const Status written = write(to_json(record));
  if (!written.ok()) trouble_ = written;
}

Status MetricsWriter::write(const OrderedJson& line) {
  return file_->write(json_line(line), line.value("version", std::uint64_t{0}));
}

}  // namespace driftless
