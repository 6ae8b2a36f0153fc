// SPDX-License-Identifier: Apache-2.0
#include "collectives/road.h"

namespace driftless {

std::string to_string(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? "anchor of version " : "version ",
                id.version);
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
  return {};
}

}  // namespace driftless
