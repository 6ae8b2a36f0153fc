// SPDX-License-Identifier: Apache-2.0
// apply_versions(): which versions, in which order.
#include <algorithm>

#include "plugin/checkpoint/checkpoint_patcher.h"

namespace driftless {
namespace {

Result<std::uint64_t> choose_target(FileSystem& fs, const std::string& directory,
                                    std::optional<std::uint64_t> wanted) {
  if (wanted) return *wanted;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> versions,
                             list_versions(fs, directory));
  if (versions.empty()) {
    return error(StatusCode::kNotFound, directory, ": no version is published there (weight_v*)");
  }
  return versions.back();
}

// From the target back, base by base, to where the checkpoint is, or to a full version.
Result<std::vector<VersionDirectory>> plan(FileSystem& fs, const std::string& directory,
                                           std::uint64_t from, std::uint64_t target) {
  std::vector<VersionDirectory> chain;
  std::uint64_t next = target;
  while (next > from) {
    Result<VersionDirectory> version = open_version(fs, directory, next);
    if (!version.ok() && version.status().code() == StatusCode::kNotFound && next != target) {
      return error(StatusCode::kWrongBase, directory, ": version ", chain.back().version,
                   " builds on version ", next,
                   ", which is not there; publish it, or a full version "
                   "from ",
                   next, " on");
    }
    if (!version.ok()) return version.status();
    next = version->base_version;
    chain.push_back(std::move(*version));
    if (chain.back().full()) {
      std::reverse(chain.begin(), chain.end());
      return chain;
    }
  }
  if (next != from) {
    return error(StatusCode::kWrongBase, directory, ": version ", chain.back().version,
                 " builds on version ", next, ", but the checkpoint is at version ", from,
                 "; restore version ", next, ", or supply a full version");
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

}  // namespace

Result<ApplyReport> apply_versions(FileSystem& fs, const std::string& directory,
                                   const std::string& checkpoint,
                                   std::optional<std::uint64_t> to_version,
                                   const ApplyOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t target, choose_target(fs, directory, to_version));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointPatcher> patcher,
                             CheckpointPatcher::open(fs, checkpoint, options));
  ApplyReport report;
  report.recovered = patcher->recovered();
  report.from_version = patcher->state().version;
  report.to_version = target;
  if (target < patcher->state().version) {
    return error(
        StatusCode::kWrongBase, checkpoint, " is at version ", patcher->state().version,
        " and cannot go back to ", target,
        "; restore the base checkpoint (and remove its .weight_sync directory), then apply "
        "with --to-version ",
        target);
  }
  if (target == patcher->state().version) {
    if (target > 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory version,
                                 open_version(fs, directory, target));
      DRIFTLESS_RETURN_IF_ERROR(patcher->check_at(version));
    }
    if (options.verify == VerifyMode::kFull) DRIFTLESS_RETURN_IF_ERROR(patcher->check_full());
    report.digest_known = patcher->state().digest.has_value();
    return report;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<VersionDirectory> chain,
                             plan(fs, directory, report.from_version, target));
  for (const VersionDirectory& version : chain) {
    DRIFTLESS_ASSIGN_OR_RETURN(AppliedVersion applied, patcher->apply(version));
    report.applied.push_back(std::move(applied));
  }
  report.digest_known = patcher->state().digest.has_value();
  return report;
}

}  // namespace driftless
