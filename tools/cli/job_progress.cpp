// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/job_progress.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/records.h"
#include "plugin/job/publisher_session.h"
#include "tools/bench/measure.h"
#include "tools/cli/console.h"

namespace driftless::cli {
namespace {

constexpr std::uint64_t kMostWaiting = 16;  // lines that wait for slow rollouts

bool all_took(std::span<const EngineTally> engines) {
  return std::ranges::all_of(engines, [](const EngineTally& tally) { return tally.failures == 0; });
}

}  // namespace

JobProgress::JobProgress(bool json, std::vector<std::string> expected, std::size_t least)
    : json_(json), expected_(std::move(expected)), least_(std::max(least, expected_.size())) {}

void JobProgress::start(const EndOfRun& newest) {
  run_ = newest.run;
  last_version_ = printed_ = newest.version;
  last_digest_ = to_hex(newest.digest);
}

void JobProgress::published(const PublishReport& report, std::string fallback) {
  last_version_ = report.version;
  last_digest_ = to_hex(report.digest);
  versions_[report.version] =
      Version{record_of(report, 0), report.mirror_bytes, report.notes, last_digest_};
  versions_[report.version].record.fallback = std::move(fallback);
}

bool JobProgress::counts(const std::string& id) const {
  return expected_.empty() || std::find(expected_.begin(), expected_.end(), id) != expected_.end();
}

void JobProgress::update(const std::vector<ReceiverReport>& reports,
                         const std::vector<std::string>& left) {
  anchor_wanted_ = false;
  for (const std::string& id : left) {
    if (const auto known = rollouts_.find(id); known != rollouts_.end()) known->second.left = true;
  }
  for (const ReceiverReport& report : reports) {
    if (!counts(report.id)) continue;
    Rollout& rollout = rollouts_[report.id];  // also for a rollout that cannot follow
    rollout.left = false;
    if (report.proof == kAnchorWanted) {
      anchor_wanted_ = true;
    }
    if (report.proof == kAnchorWanted || report.proof.empty()) {
      rollout.lost = true;  // the version it held before does not count any more
      rollout.wrong = false;
      rollout.last_proof.clear();
      rollout.before = report.proof.empty() ? report.version : 0;
      continue;
    }
    if (report.proof == rollout.last_proof) continue;
    rollout.lost = false;
    const ReportProof proof = parse_proof(report.proof);
    // A rollout makes progress if it reports its first version, or a higher one than ever before. A
    // rollout that leaves and returns, or starts over, makes none, and neither does the first
    // version of a rollout beyond the expected number.
    const bool new_one = !rollout.there && rollouts_.size() <= std::max<std::size_t>(least_, 1);
    progress_ += new_one || (rollout.there && report.version > rollout.best) ? 1 : 0;
    rollout.best = std::max(rollout.best, report.version);
    rollout.there = true;
    rollout.version = report.version;
    rollout.last_proof = report.proof;
    rollout.parts = wants_parts(report);
    const auto at = versions_.find(report.version);
    const std::string& digest = at == versions_.end() ? last_digest_ : at->second.digest;
    const bool comparable =
        !rollout.parts && (at != versions_.end() || report.version == last_version_);
    rollout.wrong = comparable && proof.digest != digest;
    if (at == versions_.end()) continue;
    Version& version = at->second;
    if (!proof.timed) continue;  // the next report will have its times
    version.staged = true;
    version.stage_ms = std::max(version.stage_ms, proof.stage_ms);
    version.commit_ms = std::max(version.commit_ms, proof.commit_ms);
  }
}

bool JobProgress::passed(std::uint64_t version) const {
  if (rollouts_.size() < least_) return false;
  return std::all_of(rollouts_.begin(), rollouts_.end(), [&](const auto& entry) {
    const Rollout& rollout = entry.second;
    return rollout.left || (rollout.there &&
                            (rollout.version > version || (rollout.version == version &&
                                                           parse_proof(rollout.last_proof).timed)));
  });
}

void JobProgress::print(bool all) {
  while (printed_ < last_version_) {
    const auto next = versions_.upper_bound(printed_);
    if (next == versions_.end()) return;
    if (!all && !passed(next->first) && last_version_ - next->first < kMostWaiting) return;
    print_line(next->second);
    printed_ = next->first;
  }
}

void JobProgress::print_line(const Version& version) {
  const VersionRecord& record = version.record;
  if (json_) {
    nlohmann::ordered_json json = to_json(record);
    json["event"] = "version";
    json["ratio"] = ratio(record.full_bytes, record.wire_bytes);
    if (version.staged) json["stage_ms"] = version.stage_ms;
    if (version.staged) json["commit_ms"] = version.commit_ms;
    if (version.mirror_bytes > 0) json["mirror_bytes"] = version.mirror_bytes;
    json["notes"] = version.notes;
    return print_json(json);
  }
  constexpr const char* kFormat = "%7s  %12s  %9s  %10s  %7s  %10s  %9s  %9s\n";
  std::array<char, 256> line{};
  if (!header_) {
    std::snprintf(line.data(), line.size(), kFormat, "version", "changed", "density", "wire",
                  "ratio", "publish ms", "stage ms", "commit ms");
    std::cout << line.data();
    header_ = true;
  }
  std::snprintf(line.data(), line.size(), kFormat, std::to_string(record.version).c_str(),
                std::to_string(record.changed_units).c_str(),
                (fixed(100 * record.published->density, 3) + " %").c_str(),
                human_bytes(record.wire_bytes).c_str(),
                fixed(ratio(record.full_bytes, record.wire_bytes), 1).c_str(),
                fixed(record.published->total_ms, 1).c_str(),
                version.staged ? fixed(version.stage_ms, 1).c_str() : "-",
                version.staged ? fixed(version.commit_ms, 1).c_str() : "-");
  std::cout << line.data();
  for (const std::string& note : version.notes) std::cout << "         " << note << "\n";
  std::cout.flush();
}

bool JobProgress::holds_last(const Rollout& rollout) const {
  return rollout.there && !rollout.lost && !rollout.wrong && rollout.version == last_version_ &&
         (rollout.parts || parse_proof(rollout.last_proof).digest == last_digest_);
}

std::string JobProgress::unproven(const Rollout& rollout) {
  if (rollout.parts) return "holds some tensors, unproven";
  const std::uint64_t tensors = parse_proof(rollout.last_proof).unproven;
  return tensors == 0 ? std::string() : concat(counted(tensors, "tensor"), " unproven");
}

bool JobProgress::present() const { return rollouts_.size() >= least_; }

bool JobProgress::nobody() const {
  return least_ == 0 &&
         std::ranges::all_of(rollouts_, [](const auto& entry) { return entry.second.left; });
}

bool JobProgress::complete() const {
  const auto holds = [&](const auto& entry) { return holds_last(entry.second); };
  if (least_ > 0) return std::cmp_greater_equal(std::ranges::count_if(rollouts_, holds), least_);
  return std::ranges::all_of(rollouts_,
                             [&](const auto& entry) { return entry.second.left || holds(entry); });
}

std::string JobProgress::missing(std::string_view absent) const {
  std::string text;
  for (const auto& [id, rollout] : rollouts_) {
    if (holds_last(rollout) || (least_ == 0 && rollout.left)) continue;
    const bool holds = rollout.there && !rollout.lost;
    text += concat(text.empty() ? "" : "; ", id,
                   rollout.wrong ? " reported another digest than the trainer's at version "
                                 : (holds ? " is at version " : " does not hold version "),
                   holds ? rollout.version : last_version_);
    if (rollout.lost && rollout.before > 0) {
      text +=
          concat(": it held version ", rollout.before, ", and has proven nothing since");
    }
  }
  if (rollouts_.size() < least_) {
    text += concat(text.empty() ? "" : "; ", least_ - rollouts_.size(), " of ",
                   counted(least_, "rollout"), absent);
  }
  return text;
}

JobProgress::Totals JobProgress::totals() const {
  Totals totals;
  std::vector<double> publish;
  std::vector<double> stage;
  std::vector<double> commit;
  for (const auto& [number, version] : versions_) {
    totals.full_bytes += version.record.full_bytes;
    totals.wire_bytes += version.record.wire_bytes;
    publish.push_back(version.record.published->total_ms);
    if (!version.staged) continue;
    stage.push_back(version.stage_ms);
    commit.push_back(version.commit_ms);
  }
  totals.publish_ms = bench::median(std::move(publish));
  totals.stage_ms = bench::median(std::move(stage));
  totals.commit_ms = bench::median(std::move(commit));
  return totals;
}

void JobProgress::print_summary_json(std::span<const EngineTally> engines,
                                     const Totals& totals) const {
  nlohmann::ordered_json json = to_json(
      EndRecord{record_origin("trainer", 0), run_, "summary", "", last_version_, last_digest_});
  json["ok"] = complete() && all_took(engines);
  json["versions"] = versions_.size();
  json["full_bytes"] = totals.full_bytes;
  json["wire_bytes"] = totals.wire_bytes;
  json["publish_ms"] = totals.publish_ms;
  json["stage_ms"] = totals.stage_ms;
  json["commit_ms"] = totals.commit_ms;
  json["rollouts"] = nlohmann::ordered_json::array();
  for (const auto& [id, rollout] : rollouts_) {
    const ReportProof proof = parse_proof(rollout.last_proof);
    json["rollouts"].push_back({{"id", id},
                                {"version", rollout.version},
                                {"digest", proof.digest},
                                {"unproven", proof.unproven},
                                {"parts", rollout.parts},
                                {"same", rollout.there && !rollout.wrong && !rollout.lost},
                                {"holds_last", holds_last(rollout)},
                                {"signed_off", rollout.left}});
  }
  json["engines"] = nlohmann::ordered_json::array();
  for (const EngineTally& tally : engines) {
    json["engines"].push_back(
        {{"url", tally.url}, {"calls", tally.versions}, {"failures", tally.failures}});
  }
  print_json(json);
}

std::string JobProgress::closing_line(bool engines) const {
  const std::string last = concat("version ", last_version_, " with digest ", last_digest_);
  if (nobody()) {
    return concat(engines ? "No rollout followed: " : "No receiver followed: ",
                  rollouts_.empty() ? "no rollout reported" : "all rollouts signed off before",
                  "; the run ended at ", last);
  }
  std::string doubts;
  for (const auto& [id, rollout] : rollouts_) {
    const std::string doubt = holds_last(rollout) ? unproven(rollout) : std::string();
    if (!doubt.empty()) doubts += concat("; ", id, ": ", doubt);
  }
  return concat(complete() ? "All" : "NOT all", " rollouts ended at ", last, doubts);
}

void JobProgress::print_summary(std::span<const EngineTally> engines) const {
  const Totals sums = totals();
  if (json_) return print_summary_json(engines, sums);
  std::cout << "\n"
            << counted(versions_.size(), "version") << ", " << human_bytes(sums.wire_bytes)
            << " instead of " << human_bytes(sums.full_bytes) << " ("
            << fixed(ratio(sums.full_bytes, sums.wire_bytes), 1)
            << " times less); median ms: publish " << fixed(sums.publish_ms, 1) << ", stage "
            << fixed(sums.stage_ms, 1) << ", commit " << fixed(sums.commit_ms, 1) << "\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [id, rollout] : rollouts_) {
    std::string digest =
        rollout.wrong ? "different" : (rollout.there && !rollout.lost ? "same" : "-");
    const std::string doubt = unproven(rollout);
    if (!doubt.empty()) digest += concat(" (", doubt, ")");
    if (rollout.left) digest += ", signed off";
    rows.push_back({id, rollout.there ? std::to_string(rollout.version) : "-", digest});
  }
  for (const EngineTally& tally : engines) {
    rows.push_back({tally.url, counted(tally.versions, "call"),
                    tally.failures == 0 ? "ok" : concat(tally.failures, " failed")});
  }
  if (!rows.empty()) print_table({"rollout", "version", "digest"}, rows);
  std::cout << closing_line(!engines.empty());
  if (!engines.empty()) {
    std::cout << "; " << (all_took(engines) ? "all" : "NOT all") << " engines took every version";
  }
  std::cout << "\n" << std::flush;
}

}  // namespace driftless::cli
