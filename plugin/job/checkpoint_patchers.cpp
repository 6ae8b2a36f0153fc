// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/checkpoint_patchers.h"

#include <algorithm>

#include "formats/receiver_needs.h"

namespace driftless {

void CheckpointPatchers::listen(std::span<const ReceiverReport> reports) {
  std::map<Place, Patcher> now;
  others_ = 0;
  for (const ReceiverReport& report : reports) {
    const Result<ReceiverNeeds> needs = parse_needs(report.needs, report.id);
    if (!needs.ok() || needs->checkpoint.empty()) {
      ++others_;
      continue;
    }
    Patcher& patcher = now[{needs->checkpoint, needs->host}];
    patcher.id = report.id;
    patcher.reports.push_back(report);
  }
  for (auto& [place, patcher] : seen_) patcher.reports.clear();
  for (auto& [place, patcher] : now) {
    if (!seen_.contains(place)) {
      const auto gone = std::ranges::find_if(seen_, [&](const auto& each) {
        return each.first.directory == place.directory && !now.contains(each.first);
      });
      if (gone != seen_.end()) seen_.erase(gone);
    }
    seen_[place] = std::move(patcher);
  }
}

Status CheckpointPatchers::check(const std::string& directory, std::uint64_t version,
                                 const std::string& digest) const {
  const std::string wanted = reported_directory(directory);
  const bool named =
      std::ranges::any_of(seen_, [&](const auto& each) { return each.first.directory == wanted; });
  for (const auto& [place, patcher] : seen_) {
    if (named && place.directory != wanted) continue;
    const std::string who =
        concat("receiver '", patcher.id, "', which patches ", place.directory, " on ", place.host);
    if (patcher.reports.empty()) return error(StatusCode::kIncomplete, who, ", is gone");
    for (const ReceiverReport& report : patcher.reports) {
      if (report.version == version && report.proof.starts_with(digest)) continue;
      return error(StatusCode::kIncomplete, who, ", reports version ", report.version,
                   report.version == version ? " without this digest" : "");
    }
  }
  if (!seen_.empty()) return {};
  return error(StatusCode::kIncomplete, others_,
               " receivers report, and none of them patches a checkpoint");
}

}  // namespace driftless
