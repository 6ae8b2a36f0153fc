// SPDX-License-Identifier: Apache-2.0
// The content of the small files of the host_shm road: the record of a publication, and the report
// of a receiver. Both end with their xxh3-128, so that a half-written one is recognized.
#pragma once

#include "collectives/road.h"

namespace driftless::host_shm {

inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{512} << 20;
inline constexpr std::uint64_t kMaxReportBytes = 4096;

struct RecordPart {
  std::string name;
  std::uint64_t size_bytes = 0;
};
struct Record {
  std::string token;  // in the names of the segments: segment_name(id, token, index in parts)
  std::string manifest;
  std::vector<RecordPart> parts;
};
[[nodiscard]] std::string record_to_bytes(const Record& record);
// kCorrupt if the bytes are not a record. Checks lengths before it allocates.
[[nodiscard]] Result<Record> record_from_bytes(std::string_view bytes, std::string_view what);

struct Report {
  ReceiverReport report;
  std::uint64_t heartbeat = 0;  // changes with every report: a sign of life
};
// At most kMaxReportBytes for a report that check_report() accepts.
[[nodiscard]] std::string report_to_bytes(const Report& report);
[[nodiscard]] Result<Report> report_from_bytes(std::string_view bytes, std::string_view what);

}  // namespace driftless::host_shm
