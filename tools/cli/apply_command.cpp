// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/checkpoint_patcher.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

void print_report(const Common& common, const ApplyArguments& options, const ApplyReport& done) {
  if (common.json) {
    nlohmann::ordered_json json;
    json["checkpoint"] = options.checkpoint;
    json["from_version"] = done.from_version;
    json["version"] = done.to_version;
    json["recovered"] = done.recovered;
    json["verified"] = options.verify;
    json["applied"] = nlohmann::ordered_json::array();
    for (const AppliedVersion& version : done.applied) {
      json["applied"].push_back({{"version", version.version},
                                 {"base_version", version.base_version},
                                 {"encoding", version.encoding},
                                 {"changed_tensors", version.changed_tensors},
                                 {"changed_units", version.changed_units},
                                 {"touched_bytes", version.touched_bytes},
                                 {"payload_bytes", version.payload_bytes},
                                 {"stage_ms", version.stage_ms},
                                 {"commit_ms", version.commit_ms}});
    }
    print_json(json);
    return;
  }
  if (done.recovered) {
    std::cout << "finished an interrupted apply: " << options.checkpoint << " is at version "
              << done.from_version << "\n";
  }
  for (const AppliedVersion& version : done.applied) {
    std::cout << "version " << version.version << ": " << version.changed_units << " units in "
              << version.changed_tensors << " tensors, " << human_bytes(version.payload_bytes)
              << ", checked in " << fixed(version.stage_ms, 0) << " ms, written in "
              << fixed(version.commit_ms, 0) << " ms\n";
  }
  std::cout << options.checkpoint << (done.applied.empty() ? " is already" : " is now")
            << " at version " << done.to_version << "\n";
}

}  // namespace

Result<int> run_apply(const Common& common, const ApplyArguments& options) {
  ProgressBar bar("applying");
  ApplyOptions apply;
  apply.threads = common.thread_count();
  apply.verify = options.verify == "full" ? VerifyMode::kFull : VerifyMode::kTouched;
  apply.lock_wait = std::chrono::milliseconds(static_cast<long>(options.wait_seconds * 1000));
  apply.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const ApplyReport done,
                             apply_versions(posix_file_system(), options.directory,
                                            options.checkpoint, options.to_version, apply));
  if (options.verify == "full" && !done.digest_known) {
    std::cerr << "driftless: note: these versions carry no digest, so only the tensors that they "
                 "change could be checked\n";
  }
  print_report(common, options, done);
  return int{kExitOk};
}

}  // namespace driftless::cli
