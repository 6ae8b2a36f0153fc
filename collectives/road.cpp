// SPDX-License-Identifier: Apache-2.0
#include "collectives/road.h"

namespace driftless {

std::string to_string(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? "anchor of version " : "version ",
                id.version);
}

bool has_version_past(const std::vector<PublicationId>& ids, std::uint64_t version) {
  return std::ranges::any_of(
      ids, [&](const PublicationId& id) { return is_version(id) && id.version > version; });
}

Status not_there(std::string_view road, const PublicationId& id) {
  return error(StatusCode::kNotFound, road, ": ", to_string(id),
               " is not there (any more); take the newest anchor");
}

Result<MappedFile> ReceiveRoad::fetch_part(const PublicationId& id, const PartReceipt& part,
                                           const Deadline& deadline) {
  const ByteRange whole{0, part.size_bytes};
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> bytes,
                             fetch_ranges(id, part, {&whole, 1}, deadline));
  return std::move(bytes.front());
}

Status check_report(const ReceiverReport& report) {
  const Status name = check_file_name(report.id);
  if (!name.ok() || report.id.size() > kMaxReceiverIdBytes) {
    return error(StatusCode::kInvalidArgument, "the receiver's id must be a plain file name of at ",
                 "most ", kMaxReceiverIdBytes,
                 " bytes: ", name.ok() ? std::string_view("it is longer") : name.message());
  }
  if (report.proof.size() > kMaxProofBytes) {
    return error(StatusCode::kInvalidArgument, "receiver ", report.id, ": a proof of ",
                 report.proof.size(), " bytes, at most ", kMaxProofBytes, " are allowed");
  }
  if (report.needs.size() > kMaxNeedsBytes) {
    return error(StatusCode::kInvalidArgument, "receiver ", report.id, ": needs of ",
                 report.needs.size(), " bytes, at most ", kMaxNeedsBytes, " are allowed");
  }
  return {};
}

}  // namespace driftless
