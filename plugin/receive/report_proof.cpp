// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/report_proof.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "formats/receiver_needs.h"
#include "formats/receiver_proof.h"

namespace driftless {
namespace {

constexpr std::size_t kDigestDigits = 32;

double number_after(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return 0.0;
  double value = 0;
  std::from_chars(text.data() + at + key.size(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::string proof_with_times(std::string_view proof, double stage_ms, double commit_ms) {
  std::array<char, 96> times{};
  std::snprintf(times.data(), times.size(), " stage_ms=%.3f commit_ms=%.3f", stage_ms, commit_ms);
  return std::string(proof) + times.data();
}

ReportProof parse_proof(std::string_view proof) {
  constexpr std::string_view kStageMs = " stage_ms=";
  if (proof == kAnchorWanted) return {};
  const std::size_t run = proof.find(kProofRun);
  return {std::string(proof.substr(0, kDigestDigits)),
          run == std::string_view::npos
              ? std::string()
              : std::string(proof.substr(run + kProofRun.size(), kDigestDigits)),
          static_cast<std::uint64_t>(std::clamp(number_after(proof, kUnproven), 0.0, 1e9)),
          proof.find(kStageMs) != std::string_view::npos,
          number_after(proof, kStageMs),
          number_after(proof, " commit_ms=")};
}

std::string reported_run(std::string_view proof, std::string_view needs) {
  std::string run = parse_proof(proof).run;
  if (!run.empty() || needs.empty()) return run;
  const Result<ReceiverNeeds> told = parse_needs(needs, "a report");
  return told.ok() && !told->run.is_zero() ? to_hex(told->run) : run;
}

}  // namespace driftless
