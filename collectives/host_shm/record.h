// SPDX-License-Identifier: Apache-2.0
// What lies in the small files of the host_shm road: the record of a publication, and what a
// receiver says. Both end with their xxh3-128, so that half of one is not taken for a whole.
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
// kCorrupt if it is not one. Lengths are checked before memory is taken.
[[nodiscard]] Result<Record> record_from_bytes(std::string_view bytes, std::string_view what);

struct Report {
  ReceiverReport report;
  std::uint64_t heartbeat = 0;  // another one in every report: a sign of life
};
// At most kMaxReportBytes, for a report that check_report() lets pass.
[[nodiscard]] std::string report_to_bytes(const Report& report);
[[nodiscard]] Result<Report> report_from_bytes(std::string_view bytes, std::string_view what);

}  // namespace driftless::host_shm
