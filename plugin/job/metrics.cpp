// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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

// write(), and its errno. A pipe whose reader has left is an error like any other: the signal that
// it sends to this thread is taken back.
std::pair<ssize_t, int> write_quietly(int file, std::string_view text) {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  const bool others = sigismember(&pending, SIGPIPE) == 1;  // not ours to take
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  ssize_t written = -1;
  do {
    written = ::write(file, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  const int failed = written < 0 ? errno : 0;
  constexpr timespec kNow{};
  if (failed == EPIPE && !others) sigtimedwait(&pipe, nullptr, &kNow);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {written, failed};
}

}  // namespace

VersionRecord record_of(const PublishReport& report, unsigned rank) {
  VersionRecord record = common(report, "trainer", rank);
  record.base_version = report.base_version;
  record.most_changed = report.most_changed;
  const double density = report.total_units == 0 ? 0.0
                                                 : static_cast<double>(report.changed_units) /
                                                       static_cast<double>(report.total_units);
  record.published = {report.encoding, density, report.process_ms, report.manifest_publish_ms,
                      report.total_ms};
  const LiveCosts& live = report.live;
  if (live.step_ms > 0) {  // without a snapshot
    record.captured = {live.captured_bytes, live.resent_tensors, live.capture_ms, live.sweep_ms,
                       live.step_ms};
  }
  return record;
}

VersionRecord record_of(const UpdateReport& report, unsigned rank) {
  VersionRecord record = common(report, "rollout", rank);
  record.base_version = report.from_version;
  record.versions = report.versions;
  record.received = {report.needed_bytes,
                     report.fetch_ms,
                     {report.stage_ms, report.pause_ms, report.apply_ms, report.resume_ms}};
  return record;
}

std::string json_line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::open(const std::string& path,
                                                           std::string_view role, unsigned rank) {
  if (path.empty()) return std::unique_ptr<MetricsWriter>();
  std::string file = filled_in(path, role, rank);
  // A pipe without a reader is refused, and one that is full loses lines: nobody waits for them.
  Descriptor fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd.valid()) return errno_status(errno, concat("metrics.file: ", file));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(file), std::move(fd)));
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
  const std::string text = concat(torn_ ? "\n" : "", json_line(line), "\n");
  const auto [written, failed] = write_quietly(file_.get(), text);
  const int reason = written < 0 ? failed : ENOSPC;
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    return {};
  }
  torn_ = torn_ || written > 0;
  if (++dropped_ > 1) return {};
  return errno_status(reason,
                      concat("metrics.file: ", path_, ": lines are lost from version ",
                             line.value("version", std::uint64_t{0}), " on; the job goes on"));
}

}  // namespace driftless
