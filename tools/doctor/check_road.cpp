// SPDX-License-Identifier: Apache-2.0
// Checks the directory, store or memory of the configuration's roads: each road provides its own
// check.
#include "plugin/job/job_process.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;

// The assumed size of a version, as a fraction of the weights, in the encodings that need most.
constexpr double kVersionShare = 0.03;

// The space for two anchors and the versions that are kept; 0 if the size of the weights is not
// known.
std::uint64_t space_needed(const Context& context) {
  const std::uint64_t weights = context.checkpoint_bytes();
  const auto versions = static_cast<double>(context.config.publisher.keep_versions);
  const bool full = context.config.publisher.mode == UpdateMode::kFull;
  const double kept = versions * (full ? 1.0 : kVersionShare) + (context.config.anchors() ? 2 : 0);
  return static_cast<std::uint64_t>(kept * static_cast<double>(weights));
}

void examine(const Context& context, const Road& row, const RoadOptions& options,
             const Report& report) {
  if (row.opener->examine == nullptr) {
    return report({std::string(row.name), kSkip, "it keeps nothing outside of its processes"});
  }
  const Deadline deadline = context.deadline.sooner(context.deadline.remaining() * 9 / 10);
  for (Finding& finding : row.opener->examine(options, space_needed(context), deadline)) {
    report(std::move(finding));
  }
}

// Whether an agent passes versions to the engines of its host by this road.
bool hands_over(const Context& context) {
  return context.config.agent.hand_over == HandOver::kHostShm &&
         !context.config.driven_engines().empty();
}

// Checks the fallback road, which must work, too. Its rows are named after it.
void check_fallback(const Context& context, const Report& report) {
  if (context.config.fallback().empty()) return;
  const std::string_view key = context.config.kind().fallback_key;
  Context there = context;
  there.config = context.config.of_fallback();
  const Result<const Road*> row = find_road(*context.roads, there.config);
  if (!row.ok()) {
    return report({"fallback", kFail, std::string(row.status().message()),
                   concat("install what is missing, or name another road by ", key)});
  }
  report({"fallback", kOk, concat(key, ": ", there.config.road)});
  examine(there, **row, there.config.road_options(), [&](Finding finding) {
    finding.check = concat("fallback ", finding.check);
    report(std::move(finding));
  });
}

}  // namespace

void check_road(const Context& context, const Report& report) {
  const Road* const chosen = context.road();
  if (chosen == nullptr) {
    return report({"road", kSkip, "no configuration names one", "name one by --config FILE"});
  }
  const Result<const Road*> opened = find_road(*context.roads, context.config);
  if (opened.ok()) {
    examine(context, **opened, context.config.road_options(), report);
  } else {
    report({std::string(chosen->name), kFail, std::string(opened.status().message()),
            "install what is missing, or choose another road"});
  }
  check_fallback(context, report);
  const auto kinds = context.config.table->kinds();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!kinds[i]->one_host || kinds[i]->name == context.config.road || !hands_over(context)) {
      continue;
    }
    const auto row = std::ranges::find(context.roads->roads, kinds[i]->name, &Road::name);
    if (row != context.roads->roads.end() && row->opener != nullptr) {
      examine(context, *row, context.config.roads[i], report);
    }
  }
}

}  // namespace driftless::doctor
