// SPDX-License-Identifier: Apache-2.0
// The proof in a receiver's report, with how many tensors it cannot read back, if any, and the
// times of its last commit: "<digest> unproven=2 stage_ms=1.5 commit_ms=0.2". A road carries it
// unread; the trainer shows it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace driftless {

struct ReportProof {
  std::string digest;          // 32 digits; empty if it holds nothing
  std::uint64_t unproven = 0;  // tensors that the digest was not computed from
  bool timed = false;          // the times were in it
  double stage_ms = 0;         // fetching included
  double commit_ms = 0;
};
[[nodiscard]] std::string proof_with_times(std::string_view proof, double stage_ms,
                                           double commit_ms);
[[nodiscard]] ReportProof parse_proof(std::string_view proof);

}  // namespace driftless
