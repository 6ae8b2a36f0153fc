// SPDX-License-Identifier: Apache-2.0
// The proof in a receiver's report, with how many tensors it cannot read back, if any, its run and
// the times of its last commit: "<digest> unproven=2 run=<run> stage_ms=1.5 commit_ms=0.2". A road
// carries it unread; the trainer shows it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace driftless {

struct ReportProof {
  std::string digest;          // 32 digits; empty if it holds nothing
  std::string run;             // 32 digits; empty: not in it
  std::uint64_t unproven = 0;  // tensors that the digest was not computed from
  bool timed = false;          // the times were in it
  double stage_ms = 0;         // fetching included
  double commit_ms = 0;
};
[[nodiscard]] std::string proof_with_times(std::string_view proof, double stage_ms,
                                           double commit_ms);
[[nodiscard]] ReportProof parse_proof(std::string_view proof);
// The run that a report is of: in its proof or, if it proves nothing, in its needs. Empty: in
// neither.
[[nodiscard]] std::string reported_run(std::string_view proof, std::string_view needs);

}  // namespace driftless
