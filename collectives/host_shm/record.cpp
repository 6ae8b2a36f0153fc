// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/record.h"

#include "collectives/fields.h"
#include "core/version.h"

namespace driftless::host_shm {
namespace {

constexpr std::string_view kRecordMagic = "DRIFTLSP";
constexpr std::string_view kReportMagic = "DRIFTLSW";
constexpr std::size_t kHashBytes = 32;  // as text

template <typename Fields, typename Value>
void walk_record(Fields& fields, Value& record) {
  fields.text(record.token, kMaxRecordBytes);
  fields.text(record.manifest, kMaxRecordBytes);
  fields.list(record.parts, kMaxRecordBytes, 2 * sizeof(std::uint64_t), [](auto& each, auto& part) {
    each.text(part.name, kMaxRecordBytes);
    each.number(part.size_bytes);
  });
}

template <typename Fields, typename Value>
void walk_report(Fields& fields, Value& report) {
  fields.number(report.heartbeat);
  fields.text(report.report.id, kMaxReportBytes);
  fields.number(report.report.version);
  fields.text(report.report.proof, kMaxReportBytes);
  fields.text(report.report.needs, kMaxReportBytes);
}

std::string sealed(std::string_view magic, WireWriter& fields) {
  const std::string bytes = concat(magic, fields.take());
  return bytes + to_hex(xxh3_128(bytes));
}

Status damaged(std::string_view what, std::string_view why) {
  return error(StatusCode::kCorrupt, what, ": ", why);
}

// The content between magic and hash.
Result<std::string_view> unsealed(std::string_view bytes, std::string_view magic,
                                  std::string_view what) {
  if (bytes.size() < magic.size() + kHashBytes || !bytes.starts_with(magic)) {
    return damaged(what, "is not what this road writes there");
  }
  const std::string_view content = bytes.substr(0, bytes.size() - kHashBytes);
  if (to_hex(xxh3_128(content)) != bytes.substr(content.size())) {
    return damaged(what, "its hash is not that of its content");
  }
  return content.substr(magic.size());
}

}  // namespace

std::string record_to_bytes(const Record& record) {
  WireWriter fields;
  walk_record(fields, record);
  return sealed(kRecordMagic, fields);
}

Result<Record> record_from_bytes(std::string_view bytes, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view content, unsealed(bytes, kRecordMagic, what));
  WireReader fields(content);
  Record record;
  walk_record(fields, record);
  if (!fields.whole()) return damaged(what, "its lengths do not add up");
  DRIFTLESS_RETURN_IF_ERROR(hash128_from_hex(record.token).status().with_context(what));
  return record;
}

std::string report_to_bytes(const Report& report) {
  WireWriter fields;
  walk_report(fields, report);
  return sealed(kReportMagic, fields);
}

Result<Report> report_from_bytes(std::string_view bytes, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view content, unsealed(bytes, kReportMagic, what));
  WireReader fields(content);
  Report report;
  walk_report(fields, report);
  if (!fields.whole()) return damaged(what, "its lengths do not add up");
  if (report.report.version > kMaxVersion) return damaged(what, "its version is too large");
  DRIFTLESS_RETURN_IF_ERROR(check_report(report.report).with_context(what));
  return report;
}

}  // namespace driftless::host_shm
